package cloud_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

func dynamoError(code, more string) reply {
	return reply{status: http.StatusBadRequest, body: `{"__type":"com.amazonaws.dynamodb.v20120810#` + code + `","message":"said the server"` + more + `}`}
}

// wantJSON compares requests as JSON.
func wantJSON(t *testing.T, got any, want string) {
	t.Helper()
	var w any
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, w) {
		text, err := json.Marshal(got)
		t.Errorf("sent %s, %v\nwant %s", text, err, want)
	}
}

func row(pk, rank string) store.Item {
	return store.Item{Key: store.Key{PK: pk, SK: "s"}, Rank: rank, Doc: []byte(`{"n":1.50,"m":{"l":[true,null,"é"]}}`)}
}

const wireItem = `{"_pk":{"S":"p"},"_sk":{"S":"s"},"_rank":{"S":"2"},"n":{"N":"1.5"},"m":{"M":{"l":{"L":[{"BOOL":true},{"NULL":true},{"S":"é"}]}}}}`

func held(rank string) string { return strings.Replace(wireItem, `"2"`, `"`+rank+`"`, 1) }

func TestPutIfOnTheWire(t *testing.T) {
	failed := func(old string) reply {
		if old != "" {
			old = `,"Item":` + old
		}
		return dynamoError("ConditionalCheckFailedException", old)
	}
	got := func(item string) reply { return reply{body: `{"Item":` + item + `}`} }
	for _, c := range []struct {
		name    string
		cond    store.Condition
		sent    string // beside table and item
		replies []reply
		want    func(*testing.T, error)
		old     string // rank of the item in the way
	}{
		{"no guard", store.Condition{}, `{}`, []reply{{body: `{}`}}, wantNil, ""},
		{"absent", store.Condition{Absent: true},
			`{"ConditionExpression":"attribute_not_exists(#pk)","ExpressionAttributeNames":{"#pk":"_pk"},"ReturnValuesOnConditionCheckFailure":"ALL_OLD"}`,
			[]reply{failed(held("7"))}, wantIs(store.ErrCondition), "7"},
		{"equals", store.Condition{Equals: map[string]any{"state": "RUNNING", "fence": int64(3), "open": true}},
			`{"ConditionExpression":"#c0 = :c0 AND #c1 = :c1 AND #c2 = :c2","ExpressionAttributeNames":{"#c0":"fence","#c1":"open","#c2":"state"},
			"ExpressionAttributeValues":{":c0":{"N":"3"},":c1":{"BOOL":true},":c2":{"S":"RUNNING"}},"ReturnValuesOnConditionCheckFailure":"ALL_OLD"}`,
			[]reply{{body: `{}`}}, wantNil, ""},
		{"the reply has no item, the table has", store.Condition{Absent: true}, "", []reply{failed(""), got(held("8"))}, wantIs(store.ErrCondition), "8"},
		{"nor has the table", store.Condition{Equals: map[string]any{"a": "b"}}, "", []reply{failed(""), {body: `{}`}}, wantIs(store.ErrCondition), ""},
		{"throttled, then written", store.Condition{}, "", []reply{dynamoError("ThrottlingException", ""), {body: `{}`}}, wantNil, ""},
		{"conflict with a transaction", store.Condition{}, "", []reply{dynamoError("TransactionConflictException", ""), {body: `{}`}}, wantNil, ""},
		{"no table", store.Condition{}, "", []reply{dynamoError("ResourceNotFoundException", "")}, wantOf(etl.StoreUnavailable), ""},
		{"credentials ran out", store.Condition{}, "", []reply{dynamoError("ExpiredTokenException", "")}, wantOf(etl.StoreUnavailable), ""},
		{"refused", store.Condition{}, "", []reply{dynamoError("ValidationException", "")}, wantOf(etl.Internal), ""},
		{"reply lost", store.Condition{Absent: true}, "", []reply{{drop: true}}, wantOf(etl.StoreUnavailable), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWire(t, false, func(n int, r request) reply {
				if in := r.json(t); n == 0 && c.sent != "" {
					if r.target() != "PutItem" || in["TableName"] != "orders" {
						t.Errorf("sent %s %s", r.target(), r.body)
					}
					wantJSON(t, in["Item"], wireItem)
					delete(in, "Item")
					delete(in, "TableName")
					wantJSON(t, in, c.sent)
				} else if r.target() == "GetItem" && in["ConsistentRead"] != true {
					t.Errorf("an eventual look at the item in the way: %s", r.body)
				}
				return c.replies[min(n, len(c.replies)-1)]
			})
			table, _ := w.table(1)
			err := table.PutIf(t.Context(), row("p", "2"), c.cond)
			c.want(t, err)
			w.wantRequests(t, len(c.replies))
			var cond *store.ConditionError
			if errors.As(err, &cond) && (cond.Old == nil) != (c.old == "") || cond != nil && cond.Old != nil &&
				(cond.Old.Rank != c.old || string(cond.Old.Doc) != `{"m":{"l":[true,null,"é"]},"n":1.5}`) {
				t.Errorf("old item %+v, want rank %q", cond.Old, c.old)
			}
		})
	}
}

func TestPutHigherOnTheWire(t *testing.T) {
	failed := func(rank string) reply {
		return dynamoError("ConditionalCheckFailedException", `,"Item":`+held(rank))
	}
	throttled := dynamoError("ProvisionedThroughputExceededException", "")
	for _, c := range []struct {
		name    string
		sdk     int
		replies []reply
		want    store.Outcome
		fails   func(*testing.T, error)
		waits   []int
	}{
		{"new", 1, []reply{{body: `{}`}}, store.New, wantNil, nil},
		{"updated", 1, []reply{{body: `{"Attributes":` + held("1") + `}`}}, store.Updated, wantNil, nil},
		{"equal rank", 1, []reply{failed("2")}, store.Unchanged, wantNil, nil},
		{"higher rank", 1, []reply{failed("3")}, store.Stale, wantNil, nil},
		{"reply lost, the SDK asks again", 3, []reply{{drop: true}, failed("2")}, store.Unchanged, wantNil, nil},
		{"reply lost", 1, []reply{{drop: true}}, 0, wantOf(etl.StoreUnavailable), nil},
		{"no item in the reply", 1, []reply{dynamoError("ConditionalCheckFailedException", ""), {body: `{"Item":` + held("3") + `}`}}, store.Stale, wantNil, nil},
		{"item in the way gone", 1, []reply{dynamoError("ConditionalCheckFailedException", ""), {body: `{}`}, {body: `{}`}}, store.New, wantNil, nil},
		{"item in the way lower when looked at", 1, []reply{dynamoError("ConditionalCheckFailedException", ""), {body: `{"Item":` + held("1") + `}`}, {body: `{"Attributes":` + held("1") + `}`}}, store.Updated, wantNil, nil},
		{"throttled, then written", 1, []reply{throttled, throttled, {body: `{}`}}, store.New, wantNil, []int{50, 100}},
		{"throttled without end", 1, []reply{throttled, throttled, throttled, throttled}, 0, wantOf(etl.StoreThrottled), []int{50, 100, 200}},
		{"refused", 1, []reply{dynamoError("ValidationException", "")}, 0, wantOf(etl.Internal), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWire(t, false, func(n int, r request) reply {
				if in := r.json(t); r.target() == "PutItem" {
					delete(in, "Item")
					wantJSON(t, in, `{"TableName":"orders","ReturnValues":"ALL_OLD","ReturnValuesOnConditionCheckFailure":"ALL_OLD",
						"ConditionExpression":"attribute_not_exists(#rank) OR #rank < :rank",
						"ExpressionAttributeNames":{"#rank":"_rank"},"ExpressionAttributeValues":{":rank":{"S":"2"}}}`)
				}
				return c.replies[min(n, len(c.replies)-1)]
			})
			table, sleeps := w.table(c.sdk)
			out, err := table.PutHigher(t.Context(), []store.Item{row("p", "2")})
			c.fails(t, err)
			if err == nil && (len(out) != 1 || out[0] != c.want) {
				t.Errorf("outcome %v, want %s", out, c.want)
			}
			w.wantRequests(t, len(c.replies))
			sleeps.want(t, c.waits...)
		})
	}
}

// TestPutHigherStops checks that one failure ends the call soon, and is the error that comes back.
func TestPutHigherStops(t *testing.T) {
	w := newWire(t, false, func(n int, _ request) reply {
		if n == 5 {
			return dynamoError("AccessDeniedException", "")
		}
		return reply{body: `{}`}
	})
	table, _ := w.table(1)
	var items []store.Item
	for i := range 500 {
		items = append(items, row(fmt.Sprintf("p%d", i), "1"))
	}
	_, err := table.PutHigher(t.Context(), items)
	wantKind(t, err, etl.StoreUnavailable)
	if !strings.Contains(err.Error(), "AccessDenied") || !strings.Contains(err.Error(), "compare its policy") || w.requests() > 100 {
		t.Errorf("after %d requests: %v", w.requests(), err)
	}
}

func TestRanksOnTheWire(t *testing.T) {
	keys := []store.Key{{PK: "a", SK: "s"}, {PK: "b", SK: "s"}, {PK: "c", SK: "s"}}
	key := func(pk string) string { return `{"_pk":{"S":"` + pk + `"},"_sk":{"S":"s"}}` }
	answer := func(found, left string) reply {
		if left != "" {
			left = `"orders":{"Keys":[` + left + `]}`
		}
		return reply{body: `{"Responses":{"orders":[` + found + `]},"UnprocessedKeys":{` + left + `}}`}
	}
	run := func(replies ...reply) (map[store.Key]string, *wire, *sleeps, error) {
		w := newWire(t, false, func(n int, r request) reply {
			in := r.json(t)["RequestItems"].(map[string]any)["orders"].(map[string]any)
			if n == 0 {
				wantJSON(t, in["Keys"], `[`+key("a")+`,`+key("b")+`,`+key("c")+`]`)
			} else if len(in["Keys"].([]any)) >= 3 && len(replies) == 3 {
				t.Errorf("asked again for what was answered: %s", r.body)
			}
			delete(in, "Keys")
			wantJSON(t, in, `{"ConsistentRead":false,"ProjectionExpression":"#pk, #sk, #rank","ExpressionAttributeNames":{"#pk":"_pk","#sk":"_sk","#rank":"_rank"}}`)
			return replies[min(n, len(replies)-1)]
		})
		table, sleeps := w.table(1)
		ranks, err := table.Ranks(t.Context(), keys)
		return ranks, w, sleeps, err
	}
	b := strings.Replace(key("b"), "}}", `},"_rank":{"S":"2"}}`, 1)
	ranks, w, sleeps, err := run(answer("", key("b")+","+key("c")), answer("", key("b")), answer(b, ""))
	wantNil(t, err)
	if len(ranks) != 1 || ranks[keys[1]] != "2" {
		t.Errorf("ranks %v", ranks)
	}
	w.wantRequests(t, 3)
	sleeps.want(t, 50, 100)

	_, w, sleeps, err = run(answer("", key("a")+","+key("b")+","+key("c")))
	wantKind(t, err, etl.StoreThrottled)
	w.wantRequests(t, 4)
	sleeps.want(t, 50, 100, 200)
}

func TestQueryOnTheWire(t *testing.T) {
	item := func(sk string) string { return `{"_pk":{"S":"p"},"_sk":{"S":"` + sk + `"}}` }
	w := newWire(t, false, func(n int, r request) reply {
		in := r.json(t)
		switch n {
		case 0:
			wantJSON(t, in, `{"TableName":"orders","ConsistentRead":true,"ScanIndexForward":false,"Limit":3,
				"KeyConditionExpression":"#pk = :pk AND begins_with(#sk, :sk)","ExpressionAttributeNames":{"#pk":"_pk","#sk":"_sk"},
				"ExpressionAttributeValues":{":pk":{"S":"p"},":sk":{"S":"load#"}}}`)
			return reply{body: `{"Items":[` + item("load#3") + `,` + item("load#2") + `],"LastEvaluatedKey":` + item("load#2") + `}`}
		case 1:
			return dynamoError("ThrottlingException", "")
		}
		wantJSON(t, []any{in["Limit"], in["ExclusiveStartKey"]}, `[1,`+item("load#2")+`]`)
		return reply{body: `{"Items":[` + item("load#1") + `],"LastEvaluatedKey":` + item("load#1") + `}`}
	})
	table, _ := w.table(1)
	var got []string
	for item, err := range table.Query(t.Context(), store.Query{PK: "p", SKPrefix: "load#", Reverse: true, Limit: 3}) {
		wantNil(t, err)
		got = append(got, item.SK)
	}
	if !slices.Equal(got, []string{"load#3", "load#2", "load#1"}) {
		t.Errorf("got %v", got)
	}
	w.wantRequests(t, 3)

	w = newWire(t, false, func(_ int, r request) reply {
		wantJSON(t, r.json(t), `{"TableName":"orders","IndexName":"by_slot","ConsistentRead":false,"ScanIndexForward":true,
			"KeyConditionExpression":"#pk = :pk AND begins_with(#sk, :sk)","ExpressionAttributeNames":{"#pk":"pipeline","#sk":"slot"},
			"ExpressionAttributeValues":{":pk":{"S":"orders"},":sk":{"S":"2026"}}}`)
		return reply{body: `{"Items":[{"_pk":{"S":"p"},"_sk":{"S":"s"},"set":{"SS":["x"]}}]}`}
	})
	table, _ = w.table(1)
	for _, err := range table.Query(t.Context(), store.Query{Index: "by_slot", PK: "orders", SKPrefix: "2026"}) {
		wantKind(t, err, etl.Internal) // somebody else wrote a set
	}
}

func TestPutAllHigherOnTheWire(t *testing.T) {
	ranks := func(pairs ...string) reply {
		var found []string
		for i := 0; i < len(pairs); i += 2 {
			found = append(found, `{"_pk":{"S":"`+pairs[i]+`"},"_sk":{"S":"s"},"_rank":{"S":"`+pairs[i+1]+`"}}`)
		}
		return reply{body: `{"Responses":{"orders":[` + strings.Join(found, ",") + `]},"UnprocessedKeys":{}}`}
	}
	cancelled := func(codes ...string) reply {
		var reasons []string
		for _, c := range codes {
			reasons = append(reasons, `{"Code":"`+c+`"}`)
		}
		return dynamoError("TransactionCanceledException", `,"CancellationReasons":[`+strings.Join(reasons, ",")+`]`)
	}
	look := ranks("low", "1", "same", "2", "high", "3")
	for _, c := range []struct {
		name    string
		replies []reply
		sent    []string // what each transaction puts
		want    func(*testing.T, error)
		out     []store.Outcome
		waits   []int
	}{
		{"losers are left out", []reply{look, {body: `{}`}}, []string{"new low"}, wantNil, []store.Outcome{store.New, store.Updated, store.Unchanged, store.Stale}, nil},
		{"all lose", []reply{ranks("new", "2", "low", "2", "same", "2", "high", "3")}, nil, wantNil, []store.Outcome{store.Unchanged, store.Unchanged, store.Unchanged, store.Stale}, nil},
		{"a rank rose meanwhile", []reply{look, cancelled("ConditionalCheckFailed", "None"), ranks("new", "5", "low", "1", "same", "2", "high", "3"), {body: `{}`}},
			[]string{"new low", "low"}, wantNil, []store.Outcome{store.Stale, store.Updated, store.Unchanged, store.Stale}, []int{50}},
		{"conflicts without end", []reply{look, cancelled("None", "TransactionConflict"), look, cancelled("TransactionConflict"), look, cancelled("TransactionConflict"), look, cancelled("TransactionConflict")},
			[]string{"new low", "new low", "new low", "new low"}, wantOf(etl.StoreUnavailable), nil, []int{50, 100, 200}},
		{"throttled without end", []reply{look, cancelled("ThrottlingError"), look, cancelled("None", "ProvisionedThroughputExceeded"), look, cancelled("ThrottlingError"), look, cancelled("ThrottlingError")},
			[]string{"new low", "new low", "new low", "new low"}, wantOf(etl.StoreThrottled), nil, []int{50, 100, 200}},
		{"refused", []reply{look, cancelled("None", "ValidationError")}, []string{"new low"}, wantOf(etl.Internal), nil, nil},
		{"no permission", []reply{look, dynamoError("AccessDeniedException", "")}, []string{"new low"}, wantOf(etl.StoreUnavailable), nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var sent []string
			w := newWire(t, false, func(n int, r request) reply {
				in := r.json(t)
				switch r.target() {
				case "BatchGetItem":
					if in["RequestItems"].(map[string]any)["orders"].(map[string]any)["ConsistentRead"] != true {
						t.Errorf("an eventual look at the ranks: %s", r.body)
					}
				case "TransactWriteItems":
					var pks []string
					for _, action := range in["TransactItems"].([]any) {
						put := action.(map[string]any)["Put"].(map[string]any)
						pks = append(pks, put["Item"].(map[string]any)["_pk"].(map[string]any)["S"].(string))
						if put["ConditionExpression"] != "attribute_not_exists(#rank) OR #rank < :rank" {
							t.Errorf("put without the condition: %v", put)
						}
					}
					sent = append(sent, strings.Join(pks, " "))
				}
				return c.replies[min(n, len(c.replies)-1)]
			})
			table, sleeps := w.table(1)
			out, err := table.PutAllHigher(t.Context(), []store.Item{row("new", "2"), row("low", "2"), row("same", "2"), row("high", "2")})
			c.want(t, err)
			if !slices.Equal(out, c.out) || !slices.Equal(sent, c.sent) {
				t.Errorf("outcomes %v, want %v; sent %q, want %q", out, c.out, sent, c.sent)
			}
			w.wantRequests(t, len(c.replies))
			sleeps.want(t, c.waits...)
		})
	}
}
