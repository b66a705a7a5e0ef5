package cloud_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/onceload/onceload/pkg/etl"
	"github.com/onceload/onceload/pkg/store"
)

func is(err, target error) bool { return errors.Is(err, target) }

func s3Error(status int, code string) reply {
	return reply{status: status, body: "<Error><Code>" + code + "</Code><Message>said the server</Message></Error>"}
}

func crc(body []byte) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(body)))
}

func TestPutOnceOnTheWire(t *testing.T) {
	body := []byte("pages")
	conflict := s3Error(http.StatusConflict, "ConditionalRequestConflict")
	exists := s3Error(http.StatusPreconditionFailed, "PreconditionFailed")
	for _, c := range []struct {
		name    string
		sdk     int // the SDK's own attempts
		replies []reply
		want    func(*testing.T, error)
		waits   []int
	}{
		{"stored", 1, []reply{{}}, wantNil, nil},
		{"there already", 3, []reply{exists}, wantIs(store.ErrExists), nil},
		{"conflict, then stored", 3, []reply{conflict, conflict, {}}, wantNil, []int{50, 100}},
		{"conflict, then there", 3, []reply{conflict, exists}, wantIs(store.ErrExists), []int{50}},
		{"conflicts without end", 3, []reply{conflict, conflict, conflict, conflict}, wantOf(etl.StoreUnavailable), []int{50, 100, 200}},
		{"throttled, then stored", 1, []reply{s3Error(503, "SlowDown"), {}}, wantNil, []int{50}},
		{"throttled without end", 1, []reply{s3Error(503, "SlowDown"), s3Error(503, "SlowDown"), s3Error(503, "SlowDown"), s3Error(503, "SlowDown")}, wantOf(etl.StoreThrottled), []int{50, 100, 200}},
		{"reply lost, stored", 1, []reply{{drop: true}}, wantOf(etl.StoreUnavailable), nil},
		{"reply lost, the SDK asks again", 3, []reply{{drop: true}, exists}, wantIs(store.ErrExists), nil},
		{"server fault, the SDK asks again", 3, []reply{s3Error(500, "InternalError"), {}}, wantNil, nil},
		{"server fault without end", 3, []reply{s3Error(500, "InternalError"), s3Error(500, "InternalError"), s3Error(500, "InternalError")}, wantOf(etl.StoreUnavailable), nil},
		{"no permission", 3, []reply{s3Error(403, "AccessDenied")}, wantOf(etl.StoreUnavailable), nil},
		{"no bucket", 3, []reply{s3Error(404, "NoSuchBucket")}, wantOf(etl.StoreUnavailable), nil},
		{"refused", 3, []reply{s3Error(400, "InvalidArgument")}, wantOf(etl.Internal), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWire(t, false, func(n int, r request) reply {
				if r.Method != http.MethodPut || r.URL.Path != "/bucket/raw/part-00000.json.gz" {
					t.Errorf("%s %s", r.Method, r.URL.Path)
				}
				if got := r.Header.Get("If-None-Match"); got != "*" {
					t.Errorf("If-None-Match %q: a put without it may overwrite a landed page", got)
				}
				if got := r.Header.Get("X-Amz-Checksum-Crc32"); got != crc(body) || !bytes.Equal(r.body, body) {
					t.Errorf("checksum %q, want %q; body %q", got, crc(body), r.body)
				}
				return c.replies[min(n, len(c.replies)-1)]
			})
			objects, sleeps := w.objects(c.sdk)
			c.want(t, objects.PutOnce(t.Context(), "raw/part-00000.json.gz", body))
			w.wantRequests(t, len(c.replies))
			sleeps.want(t, c.waits...)
		})
	}
}

func wantNil(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func wantIs(target error) func(*testing.T, error) {
	return func(t *testing.T, err error) {
		t.Helper()
		if !errors.Is(err, target) {
			t.Errorf("error %v, want %v", err, target)
		}
	}
}

func wantOf(kind etl.Kind) func(*testing.T, error) {
	return func(t *testing.T, err error) {
		t.Helper()
		wantKind(t, err, kind)
	}
}

// TestTrailingChecksum checks what goes over TLS: the body in chunks, its checksum behind it.
func TestTrailingChecksum(t *testing.T) {
	w := newWire(t, true, func(_ int, r request) reply {
		if r.Header.Get("If-None-Match") != "*" || r.Header.Get("Content-Encoding") != "aws-chunked" || r.Header.Get("X-Amz-Trailer") != "x-amz-checksum-crc32" {
			t.Errorf("headers %v", r.Header)
		}
		if want := "5\r\npages\r\n0\r\nx-amz-checksum-crc32:" + crc([]byte("pages")) + "\r\n\r\n"; string(r.body) != want {
			t.Errorf("body %q, want %q", r.body, want)
		}
		return reply{}
	})
	objects, _ := w.objects(1)
	wantNil(t, objects.PutOnce(t.Context(), "a", []byte("pages")))
}

func TestReadsOnTheWire(t *testing.T) {
	ctx := t.Context()
	get := func(answer reply) error {
		w := newWire(t, false, func(int, request) reply { return answer })
		objects, _ := w.objects(1)
		r, err := objects.Get(ctx, "a")
		if err != nil {
			return err
		}
		_, err = io.ReadAll(r)
		return errors.Join(err, r.Close())
	}
	wantIs(store.ErrNotFound)(t, get(s3Error(404, "NoSuchKey")))
	missing := get(s3Error(404, "NoSuchBucket"))
	wantKind(t, missing, etl.StoreUnavailable) // a wrong name must not read as "no manifest yet"
	if !strings.Contains(missing.Error(), "deploy the stack") {
		t.Errorf("%v does not say what to do", missing)
	}
	wantKind(t, get(s3Error(403, "AccessDenied")), etl.StoreUnavailable)
	wantKind(t, get(reply{body: "half", cut: true}), etl.StoreUnavailable)
	wantKind(t, get(reply{body: "altered", header: map[string]string{"X-Amz-Checksum-Crc32": crc([]byte("original"))}}), etl.StoreUnavailable)
	wantNil(t, get(reply{body: "original", header: map[string]string{"X-Amz-Checksum-Crc32": crc([]byte("original"))}}))

	for _, c := range []struct {
		off, n int64
		want   string
	}{
		{0, 1, "bytes=0-0"}, {5, 10, "bytes=5-14"}, {-1, 16, "bytes=-16"}, {7, 1<<63 - 1, "bytes=7-9223372036854775807"},
	} {
		w := newWire(t, false, func(_ int, r request) reply {
			if got := r.Header.Get("Range"); got != c.want {
				t.Errorf("%d bytes from %d: range %q, want %q", c.n, c.off, got, c.want)
			}
			return reply{status: http.StatusPartialContent, body: "x"}
		})
		objects, _ := w.objects(1)
		_, err := objects.GetRange(ctx, "a", c.off, c.n)
		wantNil(t, err)
	}
	w := newWire(t, false, func(int, request) reply { return reply{status: 206, body: "half", cut: true} })
	objects, _ := w.objects(1)
	_, err := objects.GetRange(ctx, "a", 0, 1000)
	wantKind(t, err, etl.StoreUnavailable)

	w = newWire(t, false, func(int, request) reply { return reply{status: 404} }) // HEAD has no body and so no code
	objects, _ = w.objects(1)
	_, err = objects.Head(ctx, "a")
	wantIs(store.ErrNotFound)(t, err)

	// The end of the context is its own error, whatever the SDK makes of it.
	ended, cancel := context.WithCancel(ctx)
	w = newWire(t, false, func(int, request) reply { cancel(); return reply{drop: true} })
	objects, _ = w.objects(3)
	if err := objects.PutOnce(ended, "a", nil); etl.KindOf(err) != etl.Interrupted {
		t.Errorf("cancelled under way: %v of kind %s", err, etl.KindOf(err))
	}
}

func TestListOnTheWire(t *testing.T) {
	page := func(more string, keys ...string) reply {
		body := "<ListBucketResult>"
		if more != "" {
			body += "<IsTruncated>true</IsTruncated><NextContinuationToken>" + more + "</NextContinuationToken>"
		}
		for _, k := range keys {
			body += "<Contents><Key>" + k + "</Key><Size>3</Size></Contents>"
		}
		return reply{body: body + "</ListBucketResult>"}
	}
	list := func(pages ...reply) (keys []string, err error) {
		next := 0
		w := newWire(t, false, func(n int, r request) reply {
			q := r.URL.Query()
			if q.Get("list-type") != "2" || q.Get("prefix") != "p/" || (next > 0) != (q.Get("continuation-token") == fmt.Sprint("t", next)) {
				t.Errorf("page %d asked for with %s", next, r.URL.RawQuery)
			}
			if n == 1 {
				return s3Error(503, "SlowDown") // asked for again
			}
			next++
			return pages[next-1]
		})
		objects, _ := w.objects(1)
		for info, e := range objects.List(t.Context(), "p/") {
			if err = e; e == nil {
				keys = append(keys, info.Key)
			}
		}
		return keys, err
	}
	keys, err := list(page("t1", "p/a", "p/b"), page("t2"), page("", "p/c"))
	if wantNil(t, err); strings.Join(keys, " ") != "p/a p/b p/c" {
		t.Errorf("listed %v", keys)
	}
	_, err = list(page("t1", "p/a"), s3Error(403, "AccessDenied"))
	wantKind(t, err, etl.StoreUnavailable)
	_, err = list(page("t1", "p/b"), page("", "p/a"))
	wantKind(t, err, etl.StoreUnavailable)
}

// TestMultipart checks the course of a long put: parts of 8 MB with checksums, closed in order, aborted on every failure.
func TestMultipart(t *testing.T) {
	const size = 8 << 20
	cause := errors.New("the body broke off")
	for _, c := range []struct {
		name string
		body io.Reader
		part reply // to part 2
		done reply
		want func(*testing.T, error)
		seen string
	}{
		{"one request", strings.NewReader(strings.Repeat("x", size)), reply{}, reply{}, wantNil, "put"},
		{"two parts", strings.NewReader(strings.Repeat("x", size+1)), reply{}, reply{}, wantNil, "create part1 part2 complete"},
		{"three parts", strings.NewReader(strings.Repeat("x", 2*size+5)), reply{}, reply{}, wantNil, "create part1 part2 part3 complete"},
		{"body fails", io.MultiReader(strings.NewReader(strings.Repeat("x", size+9)), failing{cause}), reply{}, reply{}, wantIs(cause), "create part1 abort"},
		{"part refused", strings.NewReader(strings.Repeat("x", 2*size)), s3Error(403, "AccessDenied"), reply{}, wantOf(etl.StoreUnavailable), "create part1 part2 abort"},
		{"upload gone", strings.NewReader(strings.Repeat("x", 2*size)), s3Error(404, "NoSuchUpload"), reply{}, wantOf(etl.StoreUnavailable), "create part1 part2 abort"},
		{"completion fails with 200", strings.NewReader(strings.Repeat("x", 2*size)), reply{}, s3Error(200, "InternalError"), wantOf(etl.StoreUnavailable), "create part1 part2 complete abort"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var seen []string
			w := newWire(t, false, func(_ int, r request) reply {
				q := r.URL.Query()
				switch {
				case q.Has("uploads"):
					seen = append(seen, "create")
					return reply{body: "<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"}
				case r.Method == http.MethodDelete:
					seen = append(seen, "abort")
					return reply{status: http.StatusNoContent}
				case r.Method == http.MethodPost:
					seen = append(seen, "complete")
					if !strings.Contains(string(r.body), `<ETag>e2</ETag><PartNumber>2</PartNumber>`) || strings.Count(string(r.body), "<ChecksumCRC32>") != strings.Count(string(r.body), "<ETag>") {
						t.Errorf("completed with %s", r.body)
					}
					if c.done.body != "" {
						return c.done
					}
					return reply{body: "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"}
				case q.Has("partNumber"):
					seen = append(seen, "part"+q.Get("partNumber"))
					if len(r.body) > size || q.Get("uploadId") != "u1" || r.Header.Get("X-Amz-Checksum-Crc32") != crc(r.body) {
						t.Errorf("part of %d bytes, %s, %v", len(r.body), r.URL.RawQuery, r.Header)
					}
					if q.Get("partNumber") == "2" && c.part.status != 0 {
						return c.part
					}
					return reply{header: map[string]string{"ETag": "e" + q.Get("partNumber"), "X-Amz-Checksum-Crc32": crc(r.body)}}
				}
				seen = append(seen, "put")
				return reply{}
			})
			objects, _ := w.objects(1)
			c.want(t, objects.Put(t.Context(), "valid/a", c.body))
			if got := strings.Join(seen, " "); got != c.seen {
				t.Errorf("sent %s, want %s", got, c.seen)
			}
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
