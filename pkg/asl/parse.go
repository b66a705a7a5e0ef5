package asl

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Machine is a parsed definition. It is immutable and safe for concurrent use.
type Machine struct {
	graph   graph
	timeout time.Duration // zero: none
}

// graph is the states of a machine or of a Map's iterations.
type graph struct {
	start  string
	states map[string]*state
}

// state is one state of any type; which fields are set follows from kind.
type state struct {
	name       string
	kind       string // Pass, Task, …
	next       string // empty: the end
	parameters *template
	result     any   // of a Pass without parameters
	resultPath *path // nil: the result is dropped
	resource   string
	retry      []retrier
	catch      []catcher
	choices    []rule
	path       path // Wait: TimestampPath; Map: ItemsPath
	selector   *template
	processor  graph
	concurrent int
}

type retrier struct {
	names    []string
	interval time.Duration
	attempts int
	backoff  float64
	maxDelay time.Duration // zero: none
	jitter   bool
}

type catcher struct {
	names      []string
	resultPath *path
	next       string
}

type rule struct {
	variable path
	equals   string
	next     string
}

// Parse reads a definition. A field, type, operator or path that this package does not run, a Next without a state, a
// state that nothing leads to: each is an error with its place, like `States.Extract.Retry[0].Foo: not supported`; all
// of them are reported, one a line.
func Parse(def []byte) (*Machine, error) {
	root, err := decodeStrict(def)
	if err != nil {
		return nil, fmt.Errorf("state machine: %w", err)
	}
	p := &parser{}
	top := p.object("", root)
	m := &Machine{graph: p.graph(top, false)}
	m.timeout = p.seconds(top, "TimeoutSeconds", 0, 1)
	top.comment()
	top.close()
	if len(p.faults) > 0 {
		return nil, fmt.Errorf("state machine: %w", errors.Join(p.faults...))
	}
	return m, nil
}

// Resources lists what the machine's tasks call, sorted, each once.
func (m *Machine) Resources() []string {
	return m.collect(func(s *state) []string {
		if s.kind != "Task" {
			return nil
		}
		return []string{s.resource}
	})
}

// ErrorNames lists every name in an ErrorEquals, sorted, each once.
func (m *Machine) ErrorNames() []string {
	return m.collect(func(s *state) []string {
		var names []string
		for _, r := range s.retry {
			names = append(names, r.names...)
		}
		for _, c := range s.catch {
			names = append(names, c.names...)
		}
		return names
	})
}

func (m *Machine) collect(of func(*state) []string) []string {
	found := map[string]bool{}
	var walk func(graph)
	walk = func(g graph) {
		for _, s := range g.states {
			for _, n := range of(s) {
				found[n] = true
			}
			walk(s.processor)
		}
	}
	walk(m.graph)
	return slices.Sorted(maps.Keys(found))
}

// parser collects the faults of a definition.
type parser struct{ faults []error }

func (p *parser) fault(at, format string, args ...any) {
	if at == "" {
		at = "definition"
	}
	p.faults = append(p.faults, fmt.Errorf("%s: %w", at, fmt.Errorf(format, args...)))
}

// object is a JSON object being read: what is left in it at the end is not supported.
type object struct {
	p    *parser
	at   string
	left map[string]any
}

func (p *parser) object(at string, v any) *object {
	m, ok := v.(map[string]any)
	if !ok {
		p.fault(at, "want an object")
	}
	return &object{p: p, at: at, left: maps.Clone(m)}
}

func (o *object) take(name string) (any, bool) {
	v, ok := o.left[name]
	delete(o.left, name)
	return v, ok
}

func (o *object) place(name string) string { return join(o.at, name) }

// comment drops a Comment; it may stand anywhere.
func (o *object) comment() {
	if v, ok := o.take("Comment"); ok {
		if _, ok := v.(string); !ok {
			o.p.fault(o.place("Comment"), "want a string")
		}
	}
}

func (o *object) close() {
	for _, name := range slices.Sorted(maps.Keys(o.left)) {
		o.p.fault(o.place(name), "not supported")
	}
}

// text takes a string that must be there and not be empty.
func (o *object) text(name string) string {
	v, ok := o.take(name)
	s, is := v.(string)
	switch {
	case !ok:
		o.p.fault(o.place(name), "missing")
	case !is || s == "":
		o.p.fault(o.place(name), "want a string that is not empty")
	}
	return s
}

// list takes an array that must be there and not be empty.
func (o *object) list(name string) []any {
	v, ok := o.take(name)
	l, is := v.([]any)
	switch {
	case !ok:
		o.p.fault(o.place(name), "missing")
	case !is || len(l) == 0:
		o.p.fault(o.place(name), "want an array that is not empty")
	}
	return l
}

// number takes a number of at least least; absent if it is not there.
func (o *object) number(name string, absent, least, most float64) float64 {
	v, ok := o.take(name)
	if !ok {
		return absent
	}
	n, is := v.(json.Number)
	f, err := strconv.ParseFloat(n.String(), 64)
	if !is || err != nil || f < least || f > most {
		o.p.fault(o.place(name), "want a number from %v to %v", least, most)
		return absent
	}
	return f
}

// integer is number without a fraction.
func (o *object) integer(name string, absent, least, most int) int {
	f := o.number(name, float64(absent), float64(least), float64(most))
	if f != float64(int(f)) {
		o.p.fault(o.place(name), "want a whole number")
	}
	return int(f)
}

// maxSeconds is the most that Step Functions takes for an interval or a limit.
const maxSeconds = 99999999

func (p *parser) seconds(o *object, name string, absent, least int) time.Duration {
	return time.Duration(o.integer(name, absent, least, maxSeconds)) * time.Second
}

// readPath takes a path into the input that must be there.
func (o *object) readPath(name string) path {
	s := o.text(name)
	if s == "" {
		return path{}
	}
	p, err := parsePath(s)
	switch {
	case err != nil:
		o.p.fault(o.place(name), "%w", err)
	case p.context:
		o.p.fault(o.place(name), "path %q: the context object is not supported here", s)
	}
	return p
}

// resultPath takes a ResultPath: absent is `$`, null is nil.
func (o *object) resultPath() *path {
	const name = "ResultPath"
	v, ok := o.left[name]
	if !ok {
		return &path{}
	}
	if v == nil {
		o.take(name)
		return nil
	}
	p := o.readPath(name)
	return &p
}

// graph reads StartAt and States.
func (p *parser) graph(o *object, inner bool) graph {
	g := graph{start: o.text("StartAt"), states: map[string]*state{}}
	v, ok := o.take("States")
	if !ok {
		p.fault(o.place("States"), "missing")
		return g
	}
	states := p.object(o.place("States"), v)
	for _, name := range slices.Sorted(maps.Keys(states.left)) {
		body, _ := states.take(name)
		g.states[name] = p.state(p.object(states.place(name), body), name, inner)
	}
	p.links(o, states.at, g)
	return g
}

// links checks that every Next leads to a state, and that every state is led to.
func (p *parser) links(o *object, at string, g graph) {
	reached := map[string]bool{}
	var visit func(from, name string)
	visit = func(from, name string) {
		s, ok := g.states[name]
		switch {
		case name == "":
			return // its own fault was reported, or the end
		case !ok:
			p.fault(from, "there is no state %q", name)
			return
		case reached[name]:
			return
		}
		reached[name] = true
		here := join(at, name)
		visit(join(here, "Next"), s.next)
		for i, c := range s.catch {
			visit(fmt.Sprintf("%s.Catch[%d].Next", here, i), c.next)
		}
		for i, c := range s.choices {
			visit(fmt.Sprintf("%s.Choices[%d].Next", here, i), c.next)
		}
	}
	visit(o.place("StartAt"), g.start)
	for _, name := range slices.Sorted(maps.Keys(g.states)) {
		if !reached[name] {
			p.fault(join(at, name), "nothing leads to this state")
		}
	}
}

// maxName is the longest name of a state.
const maxName = 80

func (p *parser) state(o *object, name string, inner bool) *state {
	s := &state{name: name, kind: o.text("Type")}
	if name == "" || len(name) > maxName || strings.Contains(name, "/") {
		p.fault(o.at, "a name of a state has 1 to %d characters and no slash", maxName)
	}
	o.comment()
	switch s.kind {
	case "":
		return s
	case "Pass":
		s.parameters = o.template("Parameters", inner)
		if v, ok := o.take("Result"); ok {
			s.result = v
			if s.parameters != nil {
				p.fault(o.place("Result"), "not supported beside Parameters")
			}
		} else if s.parameters == nil {
			p.fault(o.at, "a Pass needs Parameters or Result")
		}
		s.resultPath = o.resultPath()
		o.next(s)
	case "Task":
		s.resource = o.text("Resource")
		s.parameters = o.template("Parameters", inner)
		s.resultPath = o.resultPath()
		s.retry = o.retry()
		s.catch = o.catch()
		o.next(s)
	case "Choice":
		for i, v := range o.list("Choices") {
			c := p.object(fmt.Sprintf("%s[%d]", o.place("Choices"), i), v)
			c.comment()
			s.choices = append(s.choices, rule{c.readPath("Variable"), c.text("StringEquals"), c.text("Next")})
			c.close()
		}
	case "Wait":
		s.path = o.readPath("TimestampPath")
		o.next(s)
	case "Map":
		if inner {
			p.fault(o.at, "a Map inside a Map is not supported")
			return s
		}
		s.path = o.readPath("ItemsPath")
		s.selector = o.template("ItemSelector", true)
		s.concurrent = o.integer("MaxConcurrency", 1, 1, 1000)
		s.resultPath = o.resultPath()
		if v, ok := o.take("ItemProcessor"); ok {
			s.processor = p.processor(p.object(o.place("ItemProcessor"), v))
		} else {
			p.fault(o.place("ItemProcessor"), "missing")
		}
		s.catch = o.catch()
		o.next(s)
	case "Succeed":
	default:
		p.fault(o.place("Type"), "%q is not supported", s.kind)
		return s // its fields mean nothing here
	}
	o.close()
	return s
}

func (p *parser) processor(o *object) graph {
	if v, ok := o.take("ProcessorConfig"); ok {
		c := p.object(o.place("ProcessorConfig"), v)
		if mode := c.text("Mode"); mode != "" && mode != "INLINE" {
			p.fault(c.place("Mode"), "%q is not supported; want INLINE", mode)
		}
		c.close()
	} else {
		p.fault(o.place("ProcessorConfig"), "missing")
	}
	g := p.graph(o, true)
	o.comment()
	o.close()
	return g
}

// next takes Next or End, one of the two.
func (o *object) next(s *state) {
	end, ends := o.take("End")
	_, goes := o.left["Next"]
	switch {
	case ends && end != true:
		o.p.fault(o.place("End"), "want true")
	case ends == goes:
		o.p.fault(o.at, "want Next or End, one of the two")
	}
	if goes {
		s.next = o.text("Next")
	}
}

// template takes a payload template, nil if it is not there. inMap: there is a Map item in the context object.
func (o *object) template(name string, inMap bool) *template {
	v, ok := o.take(name)
	if !ok {
		return nil
	}
	if _, ok := v.(map[string]any); !ok {
		o.p.fault(o.place(name), "want an object")
	}
	t := o.p.template(o.place(name), v, inMap)
	return &t
}

func (p *parser) template(at string, v any, inMap bool) template {
	object, ok := v.(map[string]any)
	if !ok {
		if list, ok := v.([]any); ok && hasPath(list) {
			p.fault(at, "a path inside an array is not supported")
		}
		return template{literal: v}
	}
	t := template{members: map[string]template{}}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		here := join(at, name)
		plain, isPath := strings.CutSuffix(name, ".$")
		if _, twice := t.members[plain]; twice {
			p.fault(here, "stands there twice, with and without .$")
		}
		if !isPath {
			t.members[plain] = p.template(here, object[name], inMap)
			continue
		}
		s, ok := object[name].(string)
		if !ok {
			p.fault(here, "want a path")
			continue
		}
		found, err := parsePath(s)
		if err != nil {
			p.fault(here, "%w", err)
			continue
		}
		if found.context && found.names[0] == "Map" && !inMap {
			p.fault(here, "path %q: there is no Map item here", s)
		}
		t.members[plain] = template{path: &found}
	}
	return t
}

func hasPath(v any) bool {
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, hasPath)
	case map[string]any:
		for name, inner := range v {
			if strings.HasSuffix(name, ".$") || hasPath(inner) {
				return true
			}
		}
	}
	return false
}

func (o *object) retry() []retrier {
	if _, ok := o.left["Retry"]; !ok {
		return nil
	}
	list := o.list("Retry")
	out := make([]retrier, 0, len(list))
	for i, v := range list {
		r := o.p.object(fmt.Sprintf("%s[%d]", o.place("Retry"), i), v)
		r.comment()
		one := retrier{
			names:    r.errorEquals(i == len(list)-1),
			interval: o.p.seconds(r, "IntervalSeconds", 1, 1),
			attempts: r.integer("MaxAttempts", 3, 0, maxSeconds),
			backoff:  r.number("BackoffRate", 2, 1, 1000),
			maxDelay: o.p.seconds(r, "MaxDelaySeconds", 0, 1),
		}
		if _, ok := r.left["JitterStrategy"]; ok {
			switch s := r.text("JitterStrategy"); s {
			case "FULL":
				one.jitter = true
			case "NONE":
			default:
				o.p.fault(r.place("JitterStrategy"), "%q is not supported; want FULL or NONE", s)
			}
		}
		if one.maxDelay != 0 && one.maxDelay <= one.interval {
			o.p.fault(r.place("MaxDelaySeconds"), "must be more than IntervalSeconds")
		}
		r.close()
		out = append(out, one)
	}
	return out
}

func (o *object) catch() []catcher {
	if _, ok := o.left["Catch"]; !ok {
		return nil
	}
	list := o.list("Catch")
	out := make([]catcher, 0, len(list))
	for i, v := range list {
		c := o.p.object(fmt.Sprintf("%s[%d]", o.place("Catch"), i), v)
		c.comment()
		out = append(out, catcher{names: c.errorEquals(i == len(list)-1), resultPath: c.resultPath(), next: c.text("Next")})
		c.close()
	}
	return out
}

// errorEquals takes the names; States.ALL must stand alone, in the last rule.
func (o *object) errorEquals(last bool) []string {
	const name = "ErrorEquals"
	list := o.list(name)
	out := make([]string, 0, len(list))
	for i, v := range list {
		s, ok := v.(string)
		switch {
		case !ok || s == "":
			o.p.fault(fmt.Sprintf("%s[%d]", o.place(name), i), "want a string that is not empty")
		case s == errAll && (len(list) > 1 || !last):
			o.p.fault(fmt.Sprintf("%s[%d]", o.place(name), i), "%s must stand alone, in the last rule", errAll)
		case s == errRuntime:
			o.p.fault(fmt.Sprintf("%s[%d]", o.place(name), i), "%s can be neither retried nor caught", errRuntime)
		}
		out = append(out, s)
	}
	return out
}
