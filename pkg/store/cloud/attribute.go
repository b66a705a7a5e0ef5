package cloud

import (
	"bytes"
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

// fromItem writes a checked item as attributes. An empty rank is left out.
func fromItem(item store.Item) (attributes, error) {
	d := json.NewDecoder(bytes.NewReader(item.Doc))
	d.UseNumber()
	var doc map[string]any
	if err := d.Decode(&doc); err != nil {
		return nil, err
	}
	out := make(attributes, len(doc)+3)
	for name, v := range doc {
		out[name] = fromJSON(v)
	}
	for name, v := range fromKey(item.Key) {
		out[name] = v
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

// fromJSON writes a decoded value in DynamoDB's own types.
func fromJSON(v any) types.AttributeValue {
	switch v := v.(type) {
	case string:
		return text(v)
	case json.Number:
		return &types.AttributeValueMemberN{Value: v.String()}
	case bool:
		return &types.AttributeValueMemberBOOL{Value: v}
	case []any:
		list := make([]types.AttributeValue, len(v))
		for i := range v {
			list[i] = fromJSON(v[i])
		}
		return &types.AttributeValueMemberL{Value: list}
	case map[string]any:
		m := make(attributes, len(v))
		for name, member := range v {
			m[name] = fromJSON(member)
		}
		return &types.AttributeValueMemberM{Value: m}
	}
	return &types.AttributeValueMemberNULL{Value: true}
}

// keyAndRank reads what stands beside the document.
func keyAndRank(a attributes) (item store.Item) {
	for name, dst := range map[string]*string{store.PKName: &item.PK, store.SKName: &item.SK, store.RankName: &item.Rank} {
		if s, ok := a[name].(*types.AttributeValueMemberS); ok {
			*dst = s.Value
		}
	}
	return item
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
