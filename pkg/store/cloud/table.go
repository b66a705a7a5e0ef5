package cloud

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

// Names of key and rank in expressions, where a name cannot begin with _.
const (
	pkAlias   = "#pk"
	skAlias   = "#sk"
	rankAlias = "#rank"
)

// higher is the condition of a write by rank; it also holds where there is no item, or one without rank.
const higher = "attribute_not_exists(" + rankAlias + ") OR " + rankAlias + " < :rank"

// atomicTries bounds the transactions of one PutAllHigher: each follows a fresh look at the ranks.
const atomicTries = 4

// Table is a [store.Table] in a DynamoDB table.
type Table struct {
	Retry  Retry
	client *dynamodb.Client
	schema store.Schema
	pace   *pace
}

// maxWrites bounds the writes under way at once in all calls of PutHigher together.
const maxWrites = 64

// NewTable returns the table named schema.Name, which exists with the keys and indexes of the schema.
func NewTable(client *dynamodb.Client, schema store.Schema) *Table {
	return &Table{Retry: DefaultRetry(), client: dynamodb.New(client.Options(), tune), schema: schema, pace: newPace(firstWrites, maxWrites)}
}

// wrap says where an error happened.
func (t *Table) wrap(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s in %s: %w", op, key, t.schema.Name, err)
}

// call runs f, which returns errors of the SDK, with bounded repeats.
func (t *Table) call(ctx context.Context, f func() error) error {
	return t.Retry.do(ctx, func() error { return classify(ctx, f()) })
}

// Get implements [store.Table].
func (t *Table) Get(ctx context.Context, key store.Key) (store.Item, error) {
	err := t.schema.CheckKey(key)
	var item store.Item
	if err == nil {
		item, err = t.get(ctx, key)
	}
	return item, t.wrap("get", key.Name(), err)
}

func (t *Table) get(ctx context.Context, key store.Key) (item store.Item, err error) {
	var out *dynamodb.GetItemOutput
	err = t.call(ctx, func() (err error) {
		out, err = t.client.GetItem(ctx, &dynamodb.GetItemInput{
			TableName: &t.schema.Name, Key: fromKey(key), ConsistentRead: aws.Bool(true),
		})
		return err
	})
	switch {
	case err != nil:
		return store.Item{}, err
	case len(out.Item) == 0:
		return store.Item{}, store.ErrNotFound
	}
	return toItem(out.Item)
}

// Ranks implements [store.Table].
func (t *Table) Ranks(ctx context.Context, keys []store.Key) (map[store.Key]string, error) {
	if len(keys) == 0 {
		return map[store.Key]string{}, ctx.Err()
	}
	err := t.schema.CheckKeys(keys)
	var ranks map[store.Key]string
	if err == nil {
		ranks, err = t.ranks(ctx, keys, false)
	}
	return ranks, t.wrap("read ranks from", keys[0].Name(), err)
}

func (t *Table) ranks(ctx context.Context, keys []store.Key, consistent bool) (map[store.Key]string, error) {
	todo := types.KeysAndAttributes{
		ConsistentRead:           &consistent,
		ProjectionExpression:     aws.String(pkAlias + ", " + rankAlias),
		ExpressionAttributeNames: map[string]string{pkAlias: store.PKName, rankAlias: store.RankName},
	}
	if t.schema.SortKey {
		todo.ProjectionExpression = aws.String(pkAlias + ", " + skAlias + ", " + rankAlias)
		todo.ExpressionAttributeNames[skAlias] = store.SKName
	}
	for _, k := range keys {
		todo.Keys = append(todo.Keys, fromKey(k))
	}
	ranks := make(map[store.Key]string, len(keys))
	err := t.patiently(ctx, func() error {
		out, err := t.client.BatchGetItem(ctx, &dynamodb.BatchGetItemInput{
			RequestItems: map[string]types.KeysAndAttributes{t.schema.Name: todo},
		})
		if err != nil {
			return classify(ctx, err)
		}
		for _, found := range out.Responses {
			for _, a := range found {
				item := keyAndRank(a)
				ranks[item.Key] = item.Rank
			}
		}
		if todo.Keys = out.UnprocessedKeys[t.schema.Name].Keys; len(todo.Keys) > 0 {
			return etl.Errorf(etl.StoreThrottled, "%d keys are left out", len(todo.Keys))
		}
		return nil
	})
	return ranks, err
}

// Query implements [store.Table]. Indexes hold all attributes of an item.
func (t *Table) Query(ctx context.Context, q store.Query) iter.Seq2[store.Item, error] {
	return func(yield func(store.Item, error) bool) {
		if err := t.query(ctx, q, yield); err != nil {
			yield(store.Item{}, t.wrap("query", q.PK, err))
		}
	}
}

// query returns nil once yield has returned false.
func (t *Table) query(ctx context.Context, q store.Query, yield func(store.Item, error) bool) error {
	index, err := t.schema.CheckQuery(q)
	if err != nil {
		return err
	}
	in := &dynamodb.QueryInput{
		TableName:                 &t.schema.Name,
		KeyConditionExpression:    aws.String(pkAlias + " = :pk"),
		ExpressionAttributeNames:  map[string]string{pkAlias: store.PKName},
		ExpressionAttributeValues: attributes{":pk": text(q.PK)},
		ScanIndexForward:          aws.Bool(!q.Reverse),
		ConsistentRead:            aws.Bool(index == nil),
	}
	sk := store.SKName
	if index != nil {
		in.IndexName = &index.Name
		in.ExpressionAttributeNames[pkAlias] = index.PK
		sk = index.SK
	}
	if q.SKPrefix != "" {
		in.KeyConditionExpression = aws.String(pkAlias + " = :pk AND begins_with(" + skAlias + ", :sk)")
		in.ExpressionAttributeNames[skAlias] = sk
		in.ExpressionAttributeValues[":sk"] = text(q.SKPrefix)
	}
	for left := q.Limit; ; {
		if q.Limit > 0 {
			in.Limit = aws.Int32(int32(min(left, 1_000_000)))
		}
		var out *dynamodb.QueryOutput
		err := t.call(ctx, func() (err error) {
			out, err = t.client.Query(ctx, in)
			return err
		})
		if err != nil {
			return err
		}
		for _, a := range out.Items {
			item, err := toItem(a)
			if err != nil {
				return err
			}
			if !yield(item, nil) {
				return nil
			}
		}
		left -= len(out.Items)
		if len(out.LastEvaluatedKey) == 0 || (q.Limit > 0 && left <= 0) {
			return nil
		}
		in.ExclusiveStartKey = out.LastEvaluatedKey
	}
}

// PutIf implements [store.Table].
func (t *Table) PutIf(ctx context.Context, item store.Item, cond store.Condition) error {
	checked, err := t.schema.CheckItem(item)
	if err == nil {
		err = cond.Check()
	}
	if err == nil {
		err = t.putIf(ctx, checked, cond)
	}
	return t.wrap("put", item.Name(), err)
}

func (t *Table) putIf(ctx context.Context, item store.Item, cond store.Condition) error {
	attrs, err := fromItem(item)
	if err != nil {
		return err
	}
	in := &dynamodb.PutItemInput{TableName: &t.schema.Name, Item: attrs}
	if cond.Absent {
		in.ConditionExpression = aws.String("attribute_not_exists(" + pkAlias + ")")
		in.ExpressionAttributeNames = map[string]string{pkAlias: store.PKName}
	}
	if len(cond.Equals) > 0 {
		in.ExpressionAttributeNames = map[string]string{}
		in.ExpressionAttributeValues = attributes{}
		var terms []string
		for i, name := range slices.Sorted(maps.Keys(cond.Equals)) {
			n, v := fmt.Sprintf("#c%d", i), fmt.Sprintf(":c%d", i)
			in.ExpressionAttributeNames[n] = name
			in.ExpressionAttributeValues[v] = fromCondition(cond.Equals[name])
			terms = append(terms, n+" = "+v)
		}
		in.ConditionExpression = aws.String(strings.Join(terms, " AND "))
	}
	_, old, err := t.put(ctx, in, item.Key, t.Retry.do)
	if errors.Is(err, store.ErrCondition) {
		return &store.ConditionError{Old: old}
	}
	return err
}

// fromCondition writes a value of a checked condition.
func fromCondition(v any) types.AttributeValue {
	switch v := v.(type) {
	case string:
		return text(v)
	case int64:
		return &types.AttributeValueMemberN{Value: strconv.FormatInt(v, 10)}
	case bool:
		return &types.AttributeValueMemberBOOL{Value: v}
	}
	return nil
}

// put sends a conditional write. If it took effect, before is what it replaced. If the condition failed, the error is
// ErrCondition and old the item in the way: the reply's, or where the server does not say, a look at the table's.
func (t *Table) put(ctx context.Context, in *dynamodb.PutItemInput, key store.Key, do func(context.Context, func() error) error) (before attributes, old *store.Item, err error) {
	if in.ConditionExpression != nil {
		in.ReturnValuesOnConditionCheckFailure = types.ReturnValuesOnConditionCheckFailureAllOld
	}
	var out *dynamodb.PutItemOutput
	var failed *types.ConditionalCheckFailedException
	err = do(ctx, func() error {
		var err error
		out, err = t.client.PutItem(ctx, in)
		if errors.As(err, &failed) {
			return nil
		}
		return classify(ctx, err)
	})
	if err != nil {
		return nil, nil, err
	}
	if failed == nil {
		return out.Attributes, nil, nil
	}
	var item store.Item
	if len(failed.Item) > 0 {
		item, err = toItem(failed.Item)
	} else {
		item, err = t.get(ctx, key)
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil, store.ErrCondition
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the item in the way: %w", err)
	}
	return nil, &item, store.ErrCondition
}

// PutHigher implements [store.Table] by conditional writes side by side.
func (t *Table) PutHigher(ctx context.Context, items []store.Item) ([]store.Outcome, error) {
	items, err := t.schema.CheckHigher(items)
	if err != nil {
		return nil, t.wrap("put", "items", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	outcomes := make([]store.Outcome, len(items))
	work := make(chan int)
	var all sync.WaitGroup
	for range min(maxWrites, len(items)) {
		all.Go(func() {
			for i := range work {
				var err error
				if outcomes[i], err = t.putHigher(ctx, items[i]); err != nil {
					cancel(t.wrap("put", items[i].Name(), err)) // the first one counts
				}
			}
		})
	}
	for i := range items {
		if ctx.Err() != nil {
			break
		}
		work <- i
	}
	close(work)
	all.Wait()
	if ctx.Err() != nil {
		return nil, t.wrap("put", fmt.Sprintf("%d items", len(items)), context.Cause(ctx))
	}
	return outcomes, nil
}

func (t *Table) putHigher(ctx context.Context, item store.Item) (store.Outcome, error) {
	attrs, err := fromItem(item)
	if err != nil {
		return 0, err
	}
	for range atomicTries {
		before, old, err := t.put(ctx, &dynamodb.PutItemInput{
			TableName:                 &t.schema.Name,
			Item:                      attrs,
			ConditionExpression:       aws.String(higher),
			ExpressionAttributeNames:  map[string]string{rankAlias: store.RankName},
			ExpressionAttributeValues: attributes{":rank": text(item.Rank)},
			ReturnValues:              types.ReturnValueAllOld,
		}, item.Key, t.paced)
		switch {
		case err == nil && len(before) == 0:
			return store.New, nil
		case err == nil:
			return store.Updated, nil
		case !errors.Is(err, store.ErrCondition):
			return 0, err
		case old != nil && old.Rank >= item.Rank:
			return store.Higher(old.Rank, item.Rank, true), nil
		}
		// The item in the way was gone, or another, when looked at: try again.
	}
	return 0, etl.Errorf(etl.StoreUnavailable, "the item changes under every look at it")
}

// PutAllHigher implements [store.Table] by a transaction of the items that win by a consistent look at the ranks. Losers
// stay losers: ranks only rise.
func (t *Table) PutAllHigher(ctx context.Context, items []store.Item) ([]store.Outcome, error) {
	items, err := t.schema.CheckAllHigher(items)
	if err != nil {
		return nil, t.wrap("put all", "items", err)
	}
	if len(items) == 0 {
		return []store.Outcome{}, ctx.Err()
	}
	outcomes, err := t.putAllHigher(ctx, items)
	return outcomes, t.wrap("put all", fmt.Sprintf("%d items from %s", len(items), items[0].Name()), err)
}

func (t *Table) putAllHigher(ctx context.Context, items []store.Item) ([]store.Outcome, error) {
	keys := make([]store.Key, len(items))
	for i, item := range items {
		keys[i] = item.Key
	}
	for attempt := 0; ; attempt++ {
		ranks, err := t.ranks(ctx, keys, true)
		if err != nil {
			return nil, err
		}
		outcomes := make([]store.Outcome, len(items))
		var writes []types.TransactWriteItem
		for i, item := range items {
			old, stored := ranks[item.Key]
			if outcomes[i] = store.Higher(old, item.Rank, stored); !outcomes[i].Written() {
				continue
			}
			attrs, err := fromItem(item)
			if err != nil {
				return nil, err
			}
			writes = append(writes, types.TransactWriteItem{Put: &types.Put{
				TableName:                 &t.schema.Name,
				Item:                      attrs,
				ConditionExpression:       aws.String(higher),
				ExpressionAttributeNames:  map[string]string{rankAlias: store.RankName},
				ExpressionAttributeValues: attributes{":rank": text(item.Rank)},
			}})
		}
		if len(writes) == 0 {
			return outcomes, nil
		}
		_, err = t.client.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: writes})
		if err == nil {
			return outcomes, nil
		}
		if err = classifyTransaction(ctx, err); attempt+1 >= atomicTries || (etl.KindOf(err) != etl.StoreThrottled && !errors.Is(err, errConflict)) {
			return nil, err
		}
		if err := t.Retry.wait(ctx, attempt); err != nil {
			return nil, err
		}
	}
}

// classifyTransaction looks through a cancelled transaction at why each item refused; a rank that rose meanwhile is a
// conflict.
func classifyTransaction(ctx context.Context, err error) error {
	var cancelled *types.TransactionCanceledException
	if !errors.As(err, &cancelled) || ctx.Err() != nil {
		return classify(ctx, err)
	}
	kind := etl.StoreUnavailable
	cause := errConflict
	for _, reason := range cancelled.CancellationReasons {
		switch code := aws.ToString(reason.Code); {
		case ours(code):
			return etl.Errorf(etl.Internal, "%s: %w", aws.ToString(reason.Message), err)
		case throttled(code):
			kind = etl.StoreThrottled
		}
	}
	return etl.Errorf(kind, "%w: %w", cause, err)
}
