package contract

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// spec is the contract as the ledger keeps it. What does not change a byte of output is left out or brought to one form:
// the order of the fields and of an enum, a from that says what is the default anyway, the writing of a number.
type spec struct {
	Fields    map[string]fieldSpec `json:"fields"`
	Key       []string             `json:"key"`
	Partition []string             `json:"partition"`
	Sort      []string             `json:"sort,omitempty"`
	Version   string               `json:"version,omitempty"`
	Epoch     int                  `json:"epoch"`
	Extra     string               `json:"extra"`
	Delete    *deleteSpec          `json:"delete,omitempty"`
	RecordsAt string               `json:"source.records,omitempty"`
}

type deleteSpec struct {
	From   string `json:"from"`
	Equals string `json:"equals"`
}

type fieldSpec struct {
	Type      string   `json:"type"`
	From      string   `json:"from"`
	Required  bool     `json:"required,omitempty"`
	Nullable  *bool    `json:"nullable,omitempty"` // if it is not the opposite of required
	Default   *string  `json:"default,omitempty"`
	Const     *string  `json:"const,omitempty"`
	Enum      []string `json:"enum,omitempty"`
	Clean     []string `json:"clean,omitempty"`
	Min       *string  `json:"min,omitempty"`
	Max       *string  `json:"max,omitempty"`
	MinLength *int     `json:"min_length,omitempty"`
	MaxLength *int     `json:"max_length,omitempty"`
	Pattern   string   `json:"pattern,omitempty"`
	Unit      string   `json:"unit,omitempty"`
	Layout    string   `json:"layout,omitempty"`
	Zone      string   `json:"zone,omitempty"`
	Items     string   `json:"items,omitempty"`

	DecimalComma bool   `json:"decimal_comma,omitempty"`
	Thousands    string `json:"thousands,omitempty"`
}

// describe fills in spec and digest.
func (c *Contract) describe() error {
	s := spec{
		Fields: map[string]fieldSpec{}, Key: c.decl.Key, Version: c.decl.Version, Epoch: c.decl.Epoch, Extra: c.decl.Extra,
		Partition: c.names(c.partition), Sort: c.names(c.sort), RecordsAt: c.decl.RecordsAt,
	}
	if d := c.del; d != nil {
		s.Delete = &deleteSpec{From: d.path.String(), Equals: d.equals}
	}
	for i := range c.fields {
		f := &c.fields[i]
		d := f.decl
		fs := fieldSpec{
			Type: d.Type, From: f.path.String(), Required: d.Required, Clean: d.Clean, MinLength: d.MinLen, MaxLength: d.MaxLen,
			Pattern: d.Pattern, Layout: d.Layout, Zone: d.Zone, Min: text(f.min), Max: text(f.max),
			Enum: slices.Sorted(maps.Keys(f.enum)), DecimalComma: d.DecimalComma, Thousands: d.Thousands,
		}
		if f.nullable == d.Required {
			fs.Nullable = &f.nullable
		}
		if f.isConst {
			fs.Const = text(f.fixed)
		} else {
			fs.Default = text(f.fixed)
		}
		if d.Unit != "rfc3339" {
			fs.Unit = d.Unit
		}
		if f.list {
			fs.Items = f.scalar
		}
		s.Fields[d.Name] = fs
	}
	doc, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("contract: write its spec: %w", err)
	}
	sum := sha256.Sum256(doc)
	c.spec, c.digest = doc, hex.EncodeToString(sum[:])
	return nil
}

func (c *Contract) names(fields []int) (names []string) {
	for _, i := range fields {
		names = append(names, c.fields[i].decl.Name)
	}
	return names
}

// text is b as an optional string.
func text(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}

// Spec is the contract in canonical JSON: fields, key, version, epoch, extra, delete and the target's key. The revision
// and the engine version are not in it. The caller does not change it.
func (c *Contract) Spec() []byte { return c.spec }

// Digest is the sha256 of [Contract.Spec], 64 hex digits.
func (c *Contract) Digest() string { return c.digest }

// Short is the first 8 hex digits of the digest, as they stand in object keys.
func (c *Contract) Short() string { return c.digest[:8] }

// DiffSpecs names what differs between two specs, sorted: `key`, `fields.total.min`, `fields.email (new)`,
// `fields.email (gone)`. Specs it cannot read differ as a whole: `contract`.
func DiffSpecs(old, new []byte) []string {
	var a, b map[string]json.RawMessage
	if json.Unmarshal(old, &a) != nil || json.Unmarshal(new, &b) != nil {
		return []string{"contract"}
	}
	return diff(nil, "", a, b, 0)
}

// diff compares two objects member by member, down to the members of fields.
func diff(found []string, prefix string, a, b map[string]json.RawMessage, level int) []string {
	names := map[string]bool{}
	for name := range a {
		names[name] = true
	}
	for name := range b {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		va, inA := a[name]
		vb, inB := b[name]
		var oa, ob map[string]json.RawMessage
		deeper := level == 0 && name == "fields" || level == 1
		switch {
		case bytes.Equal(va, vb):
		case level == 1 && !inA:
			found = append(found, prefix+name+" (new)")
		case level == 1 && !inB:
			found = append(found, prefix+name+" (gone)")
		case deeper && json.Unmarshal(va, &oa) == nil && json.Unmarshal(vb, &ob) == nil:
			found = diff(found, prefix+name+".", oa, ob, level+1)
		default:
			found = append(found, prefix+name)
		}
	}
	return found
}
