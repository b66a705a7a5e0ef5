package etl

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// This file holds the whole grammar of object keys and ledger item keys. Object keys use only [A-Za-z0-9/_=.-], so that
// the encoded key of an S3 notification and the raw key of an EventBridge event read the same.

// MaxParts bounds the parts of one extraction: five digits in the key.
const MaxParts = 100_000

// Revision numbers a contract: contract.revision of the pipeline file, and the engine version of the transform code.
type Revision struct {
	Contract int // contract.revision, 1..9999
	Engine   int // EngineVersion of the transform code, 1..9999
}

// String is the form of keys, `3.1`.
func (r Revision) String() string { return strconv.Itoa(r.Contract) + "." + strconv.Itoa(r.Engine) }

// ParseRevision reads what [Revision.String] writes.
func ParseRevision(s string) (Revision, error) {
	c, e, ok := strings.Cut(s, ".")
	cn, cerr := parseNumber(c)
	en, eerr := parseNumber(e)
	if !ok || cerr != nil || eerr != nil || cn > 9999 || en > 9999 {
		return Revision{}, fmt.Errorf("revision %q: want <contract>.<engine>, like 3.1", s)
	}
	return Revision{Contract: cn, Engine: en}, nil
}

// MarshalText writes the form of keys; nothing for the zero value, which stands in the payload of a gate that binds nothing.
func (r Revision) MarshalText() ([]byte, error) {
	if r == (Revision{}) {
		return []byte{}, nil
	}
	return []byte(r.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (r *Revision) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*r = Revision{}
		return nil
	}
	p, err := ParseRevision(string(b))
	*r = p
	return err
}

// Binding names one transformation of one snapshot: what Gate binds a batch to, and where its objects lie.
type Binding struct {
	Extraction int      `json:"extraction"` // from 1
	Revision   Revision `json:"revision"`
	Contract   string   `json:"contract"` // first 8 hex digits of the contract's digest
}

// String is `1/3.1/ab12cd34`, for messages.
func (b Binding) String() string {
	return fmt.Sprintf("%d/%s/%s", b.Extraction, b.Revision, b.Contract)
}

// Object kinds. Raw objects live in the raw bucket, all others in the stage bucket.
const (
	RawPart    ObjectKind = "part"       // raw/…/part-00000.json.gz: landed pages
	Manifest   ObjectKind = "manifest"   // raw/…/_manifest.json: an extraction's commit point
	Rejected   ObjectKind = "rejected"   // raw/…/_rejected/…: a body that failed validation, for people
	Valid      ObjectKind = "valid"      // valid/…/part-00000.ndjson.gz: canonical items
	Quarantine ObjectKind = "quarantine" // quarantine/…/part-00000.ndjson.gz: refused records and why
	Keys       ObjectKind = "keys"       // valid/…/_part-00000.keys: sorted key digests of a part's valid records
	Drift      ObjectKind = "drift"      // valid/…/_part-00000.drift.json: fields new, missing, retyped
)

// ObjectKind says which of the project's objects a key names.
type ObjectKind string

// Object is a parsed object key. Binding.Revision and Binding.Contract are set for stage objects only, Part for all but
// manifests and rejected bodies, Name for rejected bodies only.
type Object struct {
	Kind    ObjectKind
	Batch   Batch
	Binding Binding
	Part    int
	Name    string
}

// batchPath is the Hive-style middle of every key.
func batchPath(b Batch) string {
	return "pipeline=" + b.Pipeline + "/date=" + b.Slot.UTC().Format("2006-01-02") + "/batch=" + b.SlotID()
}

// ExtractionPrefix is the folder of one extraction in the raw bucket, with a trailing slash.
func ExtractionPrefix(b Batch, extraction int) string {
	return fmt.Sprintf("raw/%s/extraction=%d/", batchPath(b), extraction)
}

// RawPartKey is the key of a landed part.
func RawPartKey(b Batch, extraction, part int) string {
	return Object{Kind: RawPart, Batch: b, Binding: Binding{Extraction: extraction}, Part: part}.Key()
}

// ManifestKey is the key of an extraction's manifest.
func ManifestKey(b Batch, extraction int) string {
	return Object{Kind: Manifest, Batch: b, Binding: Binding{Extraction: extraction}}.Key()
}

// RejectedKey is the key of a refused body. The name must not end in .json.gz: the S3 event filter would take it.
func RejectedKey(b Batch, extraction int, name string) string {
	return Object{Kind: Rejected, Batch: b, Binding: Binding{Extraction: extraction}, Name: name}.Key()
}

// StageKey is the key of one of the four stage objects of a part.
func StageKey(kind ObjectKind, b Batch, bind Binding, part int) string {
	return Object{Kind: kind, Batch: b, Binding: bind, Part: part}.Key()
}

// Key writes the object's key.
func (o Object) Key() string {
	raw := ExtractionPrefix(o.Batch, o.Binding.Extraction)
	stage := func(top string) string {
		return fmt.Sprintf("%s/%s/extraction=%d/revision=%s/contract=%s/", top, batchPath(o.Batch),
			o.Binding.Extraction, o.Binding.Revision, o.Binding.Contract)
	}
	switch o.Kind {
	case RawPart:
		return fmt.Sprintf("%spart-%05d.json.gz", raw, o.Part)
	case Manifest:
		return raw + "_manifest.json"
	case Rejected:
		return raw + "_rejected/" + o.Name
	case Valid, Quarantine:
		return fmt.Sprintf("%spart-%05d.ndjson.gz", stage(string(o.Kind)), o.Part)
	case Keys:
		return fmt.Sprintf("%s_part-%05d.keys", stage("valid"), o.Part)
	case Drift:
		return fmt.Sprintf("%s_part-%05d.drift.json", stage("valid"), o.Part)
	}
	return ""
}

var (
	objectKey = regexp.MustCompile(`^(raw|valid|quarantine)/pipeline=([^/]+)/date=([^/]+)/batch=([^/]+)/extraction=([^/]+)/(.+)$`)
	stageTail = regexp.MustCompile(`^revision=([^/]+)/contract=([0-9a-f]{8})/(_?)part-([0-9]{5})(\.ndjson\.gz|\.keys|\.drift\.json)$`)
	partTail  = regexp.MustCompile(`^part-([0-9]{5})\.json\.gz$`)
	// rejectedName is what a rejected body may be called: no slash, no leading dot, never .json.gz.
	rejectedName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}$`)
)

// ParseKey reads any object key of the project. A key it returns without error is exactly what [Object.Key] writes.
func ParseKey(key string) (Object, error) {
	o, err := parseKey(key)
	if err != nil {
		return Object{}, fmt.Errorf("object key %q: %w", key, err)
	}
	if o.Key() != key {
		return Object{}, fmt.Errorf("object key %q: not in canonical form (want %q)", key, o.Key())
	}
	return o, nil
}

func parseKey(key string) (Object, error) {
	m := objectKey.FindStringSubmatch(key)
	if m == nil {
		return Object{}, fmt.Errorf("not one of ours")
	}
	top, tail := m[1], m[6]
	if !ValidPipeline(m[2]) {
		return Object{}, fmt.Errorf("bad pipeline name %q", m[2])
	}
	slot, err := parseSlotID(m[4])
	if err != nil {
		return Object{}, err
	}
	ex, err := parseNumber(m[5])
	if err != nil {
		return Object{}, fmt.Errorf("bad extraction: %w", err)
	}
	o := Object{Batch: Batch{Pipeline: m[2], Slot: slot}, Binding: Binding{Extraction: ex}}
	if top == "raw" {
		if p := partTail.FindStringSubmatch(tail); p != nil {
			o.Kind = RawPart
			o.Part, err = strconv.Atoi(p[1])
			return o, err
		}
		if tail == "_manifest.json" {
			o.Kind = Manifest
			return o, nil
		}
		if name, ok := strings.CutPrefix(tail, "_rejected/"); ok && rejectedName.MatchString(name) && !strings.HasSuffix(name, ".json.gz") && !strings.Contains(name, "..") {
			o.Kind, o.Name = Rejected, name
			return o, nil
		}
		return Object{}, fmt.Errorf("unknown raw object %q", tail)
	}
	s := stageTail.FindStringSubmatch(tail)
	if s == nil {
		return Object{}, fmt.Errorf("unknown stage object %q", tail)
	}
	if o.Binding.Revision, err = ParseRevision(s[1]); err != nil {
		return Object{}, err
	}
	o.Binding.Contract = s[2]
	if o.Part, err = strconv.Atoi(s[4]); err != nil {
		return Object{}, err
	}
	switch {
	case s[3] == "" && s[5] == ".ndjson.gz":
		o.Kind = ObjectKind(top)
	case s[3] == "_" && s[5] == ".keys" && top == "valid":
		o.Kind = Keys
	case s[3] == "_" && s[5] == ".drift.json" && top == "valid":
		o.Kind = Drift
	default:
		return Object{}, fmt.Errorf("unknown stage object %q", tail)
	}
	return o, nil
}

// parseNumber reads a positive decimal without sign or leading zero.
func parseNumber(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || strconv.Itoa(n) != s {
		return 0, fmt.Errorf("%q is not a number from 1", s)
	}
	return n, nil
}

// Ledger item keys. The partition key of a batch's items is [Batch.String].

// BatchSK is the sort key of the batch item.
const BatchSK = "batch"

// TransformSK is the sort key of a part's transform record.
func TransformSK(b Binding, part int) string { return fmt.Sprintf("%s%05d", TransformPrefix(b), part) }

// TransformPrefix is what the sort keys of all transform records of a binding begin with.
func TransformPrefix(b Binding) string {
	return fmt.Sprintf("transform#%d#%s#%s#", b.Extraction, b.Revision, b.Contract)
}

// LoadSK is the sort key of a part's load record. The load number is raised by each reload.
func LoadSK(b Binding, load, part int) string {
	return fmt.Sprintf("%s%05d", LoadPrefix(b, load), part)
}

// LoadPrefix is what the sort keys of all load records of one load of a binding begin with.
func LoadPrefix(b Binding, load int) string {
	return fmt.Sprintf("load#%d#%s#%s#%d#", b.Extraction, b.Revision, b.Contract, load)
}

// FailureSK is the sort key of a recorded failure.
func FailureSK(failureID string) string { return FailurePrefix + failureID }

// FailurePrefix is what the sort keys of all failures of a batch begin with.
const FailurePrefix = "failure#"

// PipelinePK is the partition key of a pipeline's bound revisions.
func PipelinePK(pipeline string) string { return "pipeline#" + pipeline }

// RevisionSK is the sort key of a bound revision: contract.revision alone.
func RevisionSK(revision int) string { return RevisionPrefix + strconv.Itoa(revision) }

// RevisionPrefix is what the sort keys of all bound revisions begin with.
const RevisionPrefix = "revision#"

// SourcePK is the partition key of a source's budget and breaker.
func SourcePK(name string) string { return "source#" + name }

// LimitsSK is the sort key of a source's budget and breaker.
const LimitsSK = "limits"

// JoinKey writes a target's key from its parts, in order: each part escaped (`%` as %25, `#` as %23), joined by `#`.
// Different lists of at least one part never give the same key.
func JoinKey(parts []string) string {
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte('#')
		}
		if strings.ContainsAny(p, "%#") {
			p = keyEscaper.Replace(p)
		}
		b.WriteString(p)
	}
	return b.String()
}

// SplitKey reads what [JoinKey] writes.
func SplitKey(key string) []string {
	parts := strings.Split(key, "#")
	for i, p := range parts {
		parts[i] = keyUnescaper.Replace(p)
	}
	return parts
}

var (
	keyEscaper   = strings.NewReplacer("%", "%25", "#", "%23")
	keyUnescaper = strings.NewReplacer("%25", "%", "%23", "#")
)
