package page_test

import (
	"bytes"
	"testing"

	"github.com/onceload/onceload/pkg/page"
)

func TestSplit(t *testing.T) {
	for _, tc := range []struct {
		name, path string
		layout     page.Layout
		body, want string
		n          int
	}{
		{name: "around", path: "data", body: `{"a":1,"data":[ {"x":[1]}, {} ] ,"meta":{"next":"c"}}`, want: `{"a":1,"data":[] ,"meta":{"next":"c"}}`, n: 2},
		{name: "empty", path: "data", body: `{"data":[ ]}`, want: `{"data":[]}`},
		{name: "deep", path: "a[1].b", body: `{"a":[0,{"b":[1,2],"c":3}],"d":4}`, want: `{"a":[0,{"b":[],"c":3}],"d":4}`, n: 2},
		{name: "the document", path: "", body: ` [1,2] `, want: ` [] `, n: 2},
		{name: "a map", path: "data", layout: page.Layout{Map: true}, body: `{"data":{"a":{},"b":{}},"t":9}`, want: `{"data":{},"t":9}`, n: 2},
		{name: "a mark", path: "data", body: "\ufeff" + `{"data":[1]}`, want: "\ufeff" + `{"data":[]}`, n: 1},
		{name: "lines", layout: page.Layout{NDJSON: true}, body: "{}\n{}\n", n: 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := page.ParsePath(tc.path)
			if err != nil {
				t.Fatal(err)
			}
			tc.layout.Path = p
			body := []byte(tc.body)
			n, around, err := tc.layout.Split(body, nil)
			if err != nil || n != tc.n || string(around) != tc.want {
				t.Fatalf("%d records, around them %q, %v; want %d, %q", n, around, err, tc.n, tc.want)
			}
			if !bytes.Equal(body, []byte(tc.body)) {
				t.Fatalf("the body became %q", body)
			}
		})
	}
	if _, around, err := (page.Layout{}).Split([]byte(`[1,`), nil); err == nil || around != nil {
		t.Fatalf("around %q, %v", around, err)
	}
}
