package source

import "strings"

// nextLink finds the target of rel="next" in Link fields (RFC 8288): several links in a field, commas and semicolons within
// quotes and targets, several relations in one rel. The first next link wins; "" = none. A field that breaks the grammar is
// read up to the break.
func nextLink(fields []string) string {
	for _, f := range fields {
		for f != "" {
			var target string
			var rels []string
			if target, rels, f = takeLink(f); target == "" {
				break
			}
			for _, r := range rels {
				if strings.EqualFold(r, "next") {
					return target
				}
			}
		}
	}
	return ""
}

// takeLink reads one link-value and returns what follows it. An empty target means that there is none.
func takeLink(s string) (target string, rels []string, rest string) {
	s = strings.TrimLeft(s, " \t,")
	if !strings.HasPrefix(s, "<") {
		return "", nil, ""
	}
	target, s, ok := strings.Cut(s[1:], ">")
	if !ok {
		return "", nil, ""
	}
	seen, anchored := false, false
	for {
		s = strings.TrimLeft(s, " \t")
		if s == "" || s[0] == ',' {
			break
		}
		if s[0] != ';' {
			return "", nil, ""
		}
		var name, value string
		name, value, s = takeParam(s[1:])
		switch {
		case strings.EqualFold(name, "rel") && !seen: // RFC 8288 §3.3: the first one counts
			seen, rels = true, strings.Fields(value)
		case strings.EqualFold(name, "anchor"):
			anchored = true
		}
	}
	if anchored { // the link speaks of another resource than the page
		rels = nil
	}
	return strings.TrimSpace(target), rels, s
}

// takeParam reads one parameter after its semicolon: a name, and a token or a quoted string if there is a value.
func takeParam(s string) (name, value, rest string) {
	end := strings.IndexAny(s, "=;,")
	if end < 0 {
		return strings.TrimSpace(s), "", ""
	}
	name, s = strings.TrimSpace(s[:end]), s[end:]
	if s[0] != '=' {
		return name, "", s
	}
	s = strings.TrimLeft(s[1:], " \t")
	if !strings.HasPrefix(s, `"`) {
		end = strings.IndexAny(s, ";,")
		if end < 0 {
			end = len(s)
		}
		return name, strings.TrimSpace(s[:end]), s[end:]
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return name, b.String(), s[i+1:]
		case '\\':
			if i++; i == len(s) {
				return name, b.String(), ""
			}
		}
		b.WriteByte(s[i])
	}
	return name, b.String(), ""
}
