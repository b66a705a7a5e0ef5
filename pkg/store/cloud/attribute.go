package cloud

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// attributes is what a DynamoDB item holds.
type attributes = map[string]types.AttributeValue

// fromItem writes a checked item, whose Doc is in canonical form, as attributes. An empty rank is left out.
func fromItem(item store.Item) (attributes, error) {
	out := make(attributes, 16)
	d := doc{text: string(item.Doc)}
	if err := d.members(out); err != nil {
		return nil, fmt.Errorf("item %s: %w", item.Name(), err)
	}
	out[store.PKName] = text(item.PK)
	if item.SK != "" {
		out[store.SKName] = text(item.SK)
	}
	if item.Rank != "" {
		out[store.RankName] = text(item.Rank)
	}
	return out, nil
}

func fromKey(k store.Key) attributes {
	out := attributes{store.PKName: text(k.PK)}
	if k.SK != "" {
		out[store.SKName] = text(k.SK)
	}
	return out
}

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

// doc reads canonical JSON, which has no blanks and no faults, into DynamoDB's own types. Its texts are parts of one string:
// a row has many, and each write makes them anew.
type doc struct {
	text string
	at   int
}

// members reads the object at hand.
func (d *doc) members(into attributes) error {
	for d.at++; d.text[d.at] != '}'; {
		if d.text[d.at] == ',' {
			d.at++
		}
		name, err := d.string()
		if err != nil {
			return err
		}
		d.at++ // the colon
		if into[name], err = d.value(); err != nil {
			return err
		}
	}
	d.at++
	return nil
}

func (d *doc) value() (types.AttributeValue, error) {
	switch d.text[d.at] {
	case '"':
		s, err := d.string()
		return text(s), err
	case '{':
		m := attributes{}
		err := d.members(m)
		return &types.AttributeValueMemberM{Value: m}, err
	case '[':
		list := []types.AttributeValue{}
		for d.at++; d.text[d.at] != ']'; {
			if d.text[d.at] == ',' {
				d.at++
			}
			v, err := d.value()
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		d.at++
		return &types.AttributeValueMemberL{Value: list}, nil
	}
	from := d.at
	for d.text[d.at] != ',' && d.text[d.at] != '}' && d.text[d.at] != ']' {
		d.at++
	}
	switch word := d.text[from:d.at]; word {
	case "true", "false":
		return &types.AttributeValueMemberBOOL{Value: word == "true"}, nil
	case "null":
		return &types.AttributeValueMemberNULL{Value: true}, nil
	default:
		return &types.AttributeValueMemberN{Value: word}, nil
	}
}

// string reads the string at hand. Few have escapes.
func (d *doc) string() (s string, err error) {
	from, escaped := d.at, false
	for d.at++; d.text[d.at] != '"'; d.at++ {
		if d.text[d.at] == '\\' {
			d.at++
			escaped = true
		}
	}
	d.at++
	if !escaped {
		return d.text[from+1 : d.at-1], nil
	}
	err = json.Unmarshal([]byte(d.text[from:d.at]), &s)
	return s, err
}

// keyAndRank reads what stands beside the document.
func keyAndRank(a attributes) store.Item {
	read := func(name string) string {
		s, ok := a[name].(*types.AttributeValueMemberS)
		if !ok {
			return ""
		}
		return s.Value
	}
	return store.Item{Key: store.Key{PK: read(store.PKName), SK: read(store.SKName)}, Rank: read(store.RankName)}
}

// toItem reads an item back, its Doc byte for byte as every other backend gives it.
func toItem(a attributes) (store.Item, error) {
	item := keyAndRank(a)
	doc := maps.Clone(a)
	delete(doc, store.PKName)
	delete(doc, store.SKName)
	delete(doc, store.RankName)
	raw, err := appendMap(nil, doc)
	if err == nil {
		item.Doc, err = store.Canonical(raw) // the service writes numbers its own way
	}
	if err != nil {
		return store.Item{}, etl.Errorf(etl.Internal, "item %s: %w", item.Name(), err)
	}
	return item, nil
}

func appendMap(dst []byte, m attributes) ([]byte, error) {
	dst = append(dst, '{')
	for i, name := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(store.AppendString(dst, name), ':')
		var err error
		if dst, err = appendValue(dst, m[name]); err != nil {
			return nil, fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	return append(dst, '}'), nil
}

func appendValue(dst []byte, v types.AttributeValue) ([]byte, error) {
	switch v := v.(type) {
	case *types.AttributeValueMemberS:
		return store.AppendString(dst, v.Value), nil
	case *types.AttributeValueMemberN:
		return append(dst, v.Value...), nil
	case *types.AttributeValueMemberBOOL:
		return fmt.Append(dst, v.Value), nil
	case *types.AttributeValueMemberNULL:
		return append(dst, "null"...), nil
	case *types.AttributeValueMemberM:
		return appendMap(dst, v.Value)
	case *types.AttributeValueMemberL:
		dst = append(dst, '[')
		for i, member := range v.Value {
			if i > 0 {
				dst = append(dst, ',')
			}
			var err error
			if dst, err = appendValue(dst, member); err != nil {
				return nil, err
			}
		}
		return append(dst, ']'), nil
	}
	return nil, fmt.Errorf("a %T is nothing that onceload writes", v)
}
