package store

// What a request costs by DynamoDB's pricing rules, in request units of on-demand tables: a write counts each KiB begun, a
// read each 4 KiB begun, an eventually consistent one half of that, a transaction double. A failed condition costs as
// much as a write of the item that stood in its way.

// WriteUnits is the cost of one write of an item of size bytes.
func WriteUnits(size int) float64 { return float64(max((size+1023)/1024, 1)) }

// ReadUnits is the cost of an eventually consistent read of an item of size bytes, 0 = there is none.
func ReadUnits(size int) float64 { return float64(max((size+4095)/4096, 1)) / 2 }
