//go:build race

package stage_test

// raced says that the race detector is on, whose memory is not the product's.
const raced = true
