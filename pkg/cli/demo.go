package cli

import "context"

func (c *command) demo(context.Context, []string) error { return nil }
