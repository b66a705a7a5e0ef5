package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
)

// logHandler prints warnings and errors for people: a line each, values as they are.
type logHandler struct {
	to    io.Writer
	attrs string
}

// Enabled lets warnings and errors through.
func (h logHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

// Handle prints one line.
func (h logHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(strings.ToLower(r.Level.String()) + ": " + r.Message + h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		b.WriteString(attr(a))
		return true
	})
	b.WriteByte('\n')
	if _, err := io.WriteString(h.to, b.String()); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	return nil
}

// attr is one attribute on one line.
func attr(a slog.Attr) string {
	v := a.Value.Resolve()
	text := v.String()
	if v.Kind() == slog.KindTime {
		text = v.Time().UTC().Format(time.RFC3339)
	}
	return "  " + a.Key + "=" + strings.ReplaceAll(text, "\n", " ")
}

// WithAttrs puts attributes into every line.
func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		h.attrs += attr(a)
	}
	return h
}

// WithGroup is not needed for lines that people read: names stand alone.
func (h logHandler) WithGroup(string) slog.Handler { return h }
