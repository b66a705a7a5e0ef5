package local

import (
	"context"
	"os"
	"strings"

	"github.com/onceload/onceload/pkg/etl"
)

// environment finds secrets in environment variables. It implements stage.Secrets.
type environment struct{ lookup func(string) (string, bool) }

// secretVariable is the variable of a secret: ONCELOAD_SECRET_ and the name in capitals, `_` for all that is no letter or
// digit.
func secretVariable(name string) string {
	return "ONCELOAD_SECRET_" + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z' || r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, name)
}

// Secret returns the value of the secret's variable, or with `_FILE` behind its name the content of the file it names.
func (e environment) Secret(_ context.Context, name string) (string, error) {
	v := secretVariable(name)
	if value, ok := e.lookup(v); ok {
		return value, nil
	}
	if path, ok := e.lookup(v + "_FILE"); ok {
		b, err := os.ReadFile(path)
		if err != nil {
			return "", etl.Errorf(etl.SourceRejected, "%w", err)
		}
		return strings.TrimRight(string(b), "\r\n"), nil
	}
	return "", etl.Errorf(etl.SourceRejected, "not set: put it into the environment variable %s, or its file's path into %s_FILE", v, v)
}
