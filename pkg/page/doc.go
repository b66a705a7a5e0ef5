// Package page reads JSON in one pass: it checks a page against RFC 8259 and UTF-8, walks to its records, and hands each
// out as the exact text it arrived in, without building a tree and without allocating for each record. [Fields] looks up
// many paths of one record in one more pass. It is the only reader of paths and raw JSON in onceload.
//
// What is strict: numbers, escapes, control characters, UTF-8, nesting (at most [MaxDepth]), nothing after the document.
// What is not a fault of the text: a name that stands twice in an object, and a \u escape of half a surrogate pair. The
// grammar allows both; the first is reported where the name matters, the second when the text is asked for.
package page
