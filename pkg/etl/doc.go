// Package etl is the domain of onceload: batches and their slots and windows, the grammar of every object and item key,
// the rank that decides which write wins, the closed list of failure kinds, and the payloads that stages exchange.
//
// It depends on the standard library alone and does no I/O, so every other package can speak its words. Four
// invariants live here and are property-tested:
//
//   - a batch id is a pure function of the pipeline and the scheduled time (never of the clock of an attempt);
//   - every key round-trips through its one formatter and parser;
//   - ranks compare as bytes in the order of their parts, at a fixed width;
//   - every error has exactly one [Kind], and every kind says whether it is transient, its exit code and what to do.
package etl
