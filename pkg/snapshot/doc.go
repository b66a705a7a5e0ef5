// Package snapshot lands raw pages in parts, closes an extraction with a manifest, and reads both back verified.
//
// A part is one object of gzip members, so that `zcat part-00000.json.gz | jq` works on it:
//
//	page 0       the body of one response, verbatim
//	…
//	page n−1
//	footer       one JSON line, {"onceload":"footer",…}: what is known of each page (see [Footer])
//	end          one JSON line of fixed width, {"onceload":"end",…}: where the footer member lies
//
// The end member is stored, not compressed: its size never changes, so a reader finds the footer in one ranged read from
// the end of the object (two for a large footer) without reading a page.
//
// Parts and manifests are written once. What landed first wins: a writer that finds something under its key reads it
// back and goes on from there. Digests are taken over uncompressed bytes, never over gzip output, which changes with the
// compressor's version. Whatever does not read back exactly as this package writes it is an error of kind
// [etl.RecordsLost] that names the object.
package snapshot
