//go:build race

package stage_test

const raced = true
