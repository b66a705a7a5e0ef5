package store

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/onceload/onceload/pkg/etl"
)

// This file holds what every backend checks before it touches its store, so that all refuse the same requests.

// More limits of DynamoDB's.
const (
	MaxAllBytes     = 4 << 20 // items of one PutAllHigher together
	maxObjectKeyLen = 1_024
	maxSegmentLen   = 255
)

// Names under which the cloud keeps key and rank beside the attributes of a Doc, which cannot use them.
const (
	PKName   = "_pk"
	SKName   = "_sk"
	RankName = "_rank"
)

// tableName is what DynamoDB allows.
var tableName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,255}$`)

// Check refuses a schema no backend can open.
func (s Schema) Check() error {
	if !tableName.MatchString(s.Name) {
		return etl.Errorf(etl.Internal, "table name %q: want letters, digits, _ . -", s.Name)
	}
	for _, x := range s.Indexes {
		if !tableName.MatchString(x.Name) || x.PK == "" {
			return etl.Errorf(etl.Internal, "table %s: index %q: bad name or no partition attribute", s.Name, x.Name)
		}
		for _, a := range []string{x.PK, x.SK} {
			if strings.ContainsAny(a, `"\'`) || !utf8.ValidString(a) {
				return etl.Errorf(etl.Internal, "table %s: index %s: bad attribute name %q", s.Name, x.Name, a)
			}
		}
	}
	return nil
}

// Name is the key in messages and hooks: `pk` or `pk/sk`.
func (k Key) Name() string {
	if k.SK == "" {
		return k.PK
	}
	return k.PK + "/" + k.SK
}

// CheckKey refuses a key that is empty, too long, or not of the table's shape.
func (s Schema) CheckKey(k Key) error {
	switch {
	case k.PK == "":
		return etl.Errorf(etl.Internal, "table %s: empty pk", s.Name)
	case len(k.PK) > MaxPKBytes:
		return etl.Errorf(etl.Internal, "table %s: pk of %d bytes: at most %d", s.Name, len(k.PK), MaxPKBytes)
	case s.SortKey && k.SK == "":
		return etl.Errorf(etl.Internal, "table %s: empty sk (pk %q)", s.Name, k.PK)
	case !s.SortKey && k.SK != "":
		return etl.Errorf(etl.Internal, "table %s has no sort key, got sk %q (pk %q)", s.Name, k.SK, k.PK)
	case len(k.SK) > MaxSKBytes:
		return etl.Errorf(etl.Internal, "table %s: sk of %d bytes: at most %d (pk %q)", s.Name, len(k.SK), MaxSKBytes, k.PK)
	case !utf8.ValidString(k.PK) || !utf8.ValidString(k.SK):
		return etl.Errorf(etl.Internal, "table %s: key %q %q is not UTF-8", s.Name, k.PK, k.SK)
	}
	return nil
}

// CheckKeys refuses what [Table.Ranks] does.
func (s Schema) CheckKeys(keys []Key) error {
	if len(keys) > MaxBatchGet {
		return etl.Errorf(etl.Internal, "table %s: %d keys in one request: at most %d", s.Name, len(keys), MaxBatchGet)
	}
	seen := make(map[Key]bool, len(keys))
	for _, k := range keys {
		if err := s.CheckKey(k); err != nil {
			return err
		}
		if seen[k] {
			return etl.Errorf(etl.Internal, "table %s: key %q %q stands twice in one request", s.Name, k.PK, k.SK)
		}
		seen[k] = true
	}
	return nil
}

// CheckItem refuses an item that DynamoDB would refuse, and returns it with its Doc in canonical form, a copy.
func (s Schema) CheckItem(item Item) (Item, error) {
	item, _, err := s.checkItem(new(canon), item)
	return item, err
}

func (s Schema) checkItem(c *canon, item Item) (Item, int, error) {
	if err := s.CheckKey(item.Key); err != nil {
		return Item{}, 0, err
	}
	refuse := func(format string, args ...any) (Item, int, error) {
		return Item{}, 0, etl.Errorf(etl.Internal, "table %s: item %q %q: "+format,
			append([]any{s.Name, item.PK, item.SK}, args...)...)
	}
	doc, attrs, err := c.canonical(item.Doc)
	if err != nil {
		return refuse("%w", err)
	}
	size := keySize(item) + attrs
	if size > MaxItemBytes {
		return refuse("%d bytes: at most %d", size, MaxItemBytes)
	}
	if !utf8.ValidString(item.Rank) {
		return refuse("rank %q is not UTF-8", item.Rank)
	}
	item.Doc = doc
	for _, x := range s.Indexes {
		for i, name := range []string{x.PK, x.SK} {
			raw, ok := attribute(doc, name)
			if !ok {
				continue
			}
			var v *string
			if err := json.Unmarshal(raw, &v); err != nil || v == nil || *v == "" {
				return refuse("attribute %s is a key of index %s: want a string that is not empty", name, x.Name)
			}
			if most := []int{MaxPKBytes, MaxSKBytes}[i]; len(*v) > most {
				return refuse("attribute %s is a key of index %s: %d bytes, at most %d", name, x.Name, len(*v), most)
			}
		}
	}
	return item, size, nil
}

// ItemSize is an item's size by DynamoDB's rules: what [MaxItemBytes] bounds.
func ItemSize(item Item) (int, error) {
	_, attrs, err := new(canon).canonical(item.Doc)
	if err != nil {
		return 0, etl.Errorf(etl.Internal, "item %q %q: %w", item.PK, item.SK, err)
	}
	return keySize(item) + attrs, nil
}

func keySize(item Item) int {
	size := len(PKName) + len(item.PK)
	if item.SK != "" {
		size += len(SKName) + len(item.SK)
	}
	if item.Rank != "" {
		size += len(RankName) + len(item.Rank)
	}
	return size
}

// CheckHigher refuses what [Table.PutHigher] does, and returns the items with canonical Docs.
func (s Schema) CheckHigher(items []Item) ([]Item, error) {
	out, _, err := s.checkHigher(items, MaxPutHigher)
	return out, err
}

// CheckAllHigher refuses what [Table.PutAllHigher] does, and returns the items with canonical Docs.
func (s Schema) CheckAllHigher(items []Item) ([]Item, error) {
	out, size, err := s.checkHigher(items, MaxPutAllHigher)
	if err == nil && size > MaxAllBytes {
		err = etl.Errorf(etl.Internal, "table %s: %d bytes in one atomic request: at most %d", s.Name, size, MaxAllBytes)
	}
	return out, err
}

func (s Schema) checkHigher(items []Item, most int) (out []Item, size int, err error) {
	if len(items) > most {
		return nil, 0, etl.Errorf(etl.Internal, "table %s: %d items in one request: at most %d", s.Name, len(items), most)
	}
	seen := make(map[Key]bool, len(items))
	out = make([]Item, len(items))
	var c canon
	for i, item := range items {
		var n int
		if out[i], n, err = s.checkItem(&c, item); err != nil {
			return nil, 0, err
		}
		if item.Rank == "" {
			return nil, 0, etl.Errorf(etl.Internal, "table %s: item %q %q: no rank", s.Name, item.PK, item.SK)
		}
		if seen[item.Key] {
			return nil, 0, etl.Errorf(etl.Internal, "table %s: key %q %q stands twice in one request", s.Name, item.PK, item.SK)
		}
		seen[item.Key] = true
		size += n
	}
	return out, size, nil
}

// CheckQuery refuses an unknown index or a query without partition, and returns the index, nil for the table itself.
func (s Schema) CheckQuery(q Query) (*Index, error) {
	if q.PK == "" || q.Limit < 0 || !utf8.ValidString(q.PK) || !utf8.ValidString(q.SKPrefix) {
		return nil, etl.Errorf(etl.Internal, "table %s: query %+v: want a pk and no negative limit", s.Name, q)
	}
	if q.Index == "" {
		if !s.SortKey && q.SKPrefix != "" {
			return nil, etl.Errorf(etl.Internal, "table %s has no sort key, got prefix %q", s.Name, q.SKPrefix)
		}
		return nil, nil
	}
	i := slices.IndexFunc(s.Indexes, func(x Index) bool { return x.Name == q.Index })
	if i < 0 {
		return nil, etl.Errorf(etl.Internal, "table %s has no index %q", s.Name, q.Index)
	}
	if s.Indexes[i].SK == "" && q.SKPrefix != "" {
		return nil, etl.Errorf(etl.Internal, "table %s: index %s has no sort key, got prefix %q", s.Name, q.Index, q.SKPrefix)
	}
	return &s.Indexes[i], nil
}

// Key is the item's key in the index. It has none, and is not in the index, when it lacks one of the attributes.
func (x Index) Key(item Item) (Key, bool) {
	var k Key
	for name, dst := range map[string]*string{x.PK: &k.PK, x.SK: &k.SK} {
		if name == "" {
			continue
		}
		raw, ok := attribute(item.Doc, name)
		if !ok || json.Unmarshal(raw, dst) != nil {
			return Key{}, false
		}
	}
	return k, true
}

// Check refuses a condition that no item can meet or that names a value of another type.
func (c Condition) Check() error {
	if c.Absent && len(c.Equals) > 0 {
		return etl.Errorf(etl.Internal, "condition wants the item absent and equal")
	}
	if len(c.Equals) > MaxConditionAttrs {
		return etl.Errorf(etl.Internal, "condition on %d attributes: at most %d", len(c.Equals), MaxConditionAttrs)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Equals)) {
		if _, err := conditionText(c.Equals[name]); err != nil || name == "" {
			return etl.Errorf(etl.Internal, "condition on %q: want a string of UTF-8, an int64 or a bool, got %T", name, c.Equals[name])
		}
	}
	return nil
}

// Holds says whether a checked condition holds for the stored item, nil if there is none.
func (c Condition) Holds(old *Item) bool {
	if c.Absent {
		return old == nil
	}
	if len(c.Equals) == 0 {
		return true
	}
	if old == nil {
		return false
	}
	for name, want := range c.Equals {
		raw, ok := attribute(old.Doc, name)
		if text, err := conditionText(want); err != nil || !ok || string(raw) != text {
			return false
		}
	}
	return true
}

// conditionText is a condition's value as it stands in a canonical document.
func conditionText(v any) (string, error) {
	switch v := v.(type) {
	case string:
		if utf8.ValidString(v) {
			return string(AppendString(nil, v)), nil
		}
	case int64:
		return strconv.FormatInt(v, 10), nil
	case bool:
		return strconv.FormatBool(v), nil
	}
	return "", etl.Errorf(etl.Internal, "a %T, or text that is not UTF-8", v)
}

// attribute finds a top-level attribute of a canonical document.
func attribute(doc []byte, name string) ([]byte, bool) {
	want := AppendString(nil, name)
	for i := 1; i < len(doc) && doc[i] != '}'; {
		end := skip(doc, i)
		value := end + 1
		next := skip(doc, value)
		if string(doc[i:end]) == string(want) {
			return doc[value:next], true
		}
		i = next
		if doc[i] == ',' {
			i++
		}
	}
	return nil, false
}

// skip is the index after the value that begins at i of a canonical document.
func skip(doc []byte, i int) int {
	depth, quoted := 0, false
	for ; i < len(doc); i++ {
		switch b := doc[i]; {
		case quoted && b == '\\':
			i++
		case b == '"':
			quoted = !quoted
		case quoted:
		case b == '{' || b == '[':
			depth++
		case depth > 0 && (b == '}' || b == ']'):
			depth--
		case depth == 0 && (b == ',' || b == ':' || b == '}' || b == ']'):
			return i
		}
	}
	return i
}

// CheckObjectKey refuses an object key outside the grammar.
func CheckObjectKey(key string) error {
	bad := len(key) > maxObjectKeyLen
	for seg := range strings.SplitSeq(key, "/") {
		bad = bad || seg == "" || seg == "." || len(seg) > maxSegmentLen
	}
	if bad || !keyText(key) {
		return etl.Errorf(etl.Internal, "object key %q: want segments of A-Z a-z 0-9 _ = . - joined by /", key)
	}
	return nil
}

// CheckPrefix refuses a prefix that no key can begin with.
func CheckPrefix(prefix string) error {
	if strings.HasPrefix(prefix, "/") || strings.Contains(prefix, "//") || !keyText(prefix) {
		return etl.Errorf(etl.Internal, "object prefix %q: no key begins so", prefix)
	}
	return nil
}

func keyText(s string) bool {
	for i := range len(s) {
		switch b := s[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9':
		case b == '/', b == '_', b == '=', b == '.', b == '-':
		default:
			return false
		}
	}
	return !strings.Contains(s, "..")
}

// CheckRange refuses what [Objects.GetRange] does.
func CheckRange(off, n int64) error {
	if off < -1 || n < 0 {
		return etl.Errorf(etl.Internal, "range of %d bytes from %d", n, off)
	}
	return nil
}

// Higher decides what becomes of an item of the given rank, where an item of rank old is stored or none is.
func Higher(old, rank string, stored bool) Outcome {
	switch {
	case !stored:
		return New
	case old < rank:
		return Updated
	case old == rank:
		return Unchanged
	}
	return Stale
}

// Written reports whether the outcome is a write.
func (o Outcome) Written() bool { return o == New || o == Updated }
