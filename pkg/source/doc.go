// Package source is the client of an HTTP API: it asks for one page at a time, tries again what may be tried again, finds
// the next page, and lets nothing through that is not the declared JSON.
//
// A [Client] has no memory between pages: the whole position is a [State] that the caller stores with the page, so any
// later process goes on where this one stopped. Every failure is classified where it is born:
//
//   - transient (network, timeouts, 408, 425, 429, 5xx, a body cut short, a 200 that is not the declared JSON): tried
//     again up to retry.attempts with growing waits of equal jitter, or as the source's Retry-After demands;
//   - permanent (any other 4xx, a foreign origin, a page over max_bytes, a charset or encoding we do not read): one attempt;
//   - [Wait]: the next attempt is too far away to sleep through; the caller hands it to the state machine.
//
// Credentials go to the origin of source.url only, and stand in no error, log line, [Page] or [State].
package source
