package roundtrip

import (
	"context"
	"slices"
)

// shared is the context of a round trip that several callers share. It has the values of none of
// them: a span of one caller would otherwise become the parent of what the others have sent. It
// knows their contexts instead, so that a hook of the client can link its span to each of theirs.
type shared struct {
	context.Context
	callers []context.Context
}

// callersOf is the key under which a shared finds itself, also below contexts made from it.
type callersOf struct{}

func (s *shared) Value(key any) any {
	if key == (callersOf{}) {
		return s
	}
	return s.Context.Value(key)
}

// share returns the context in which those commands are sent together: that of the caller if there
// is one command. The list is a copy, since a hook may keep it, and a trip uses its batch again.
func share(batch []*Command) context.Context {
	if len(batch) == 1 {
		return &batch[0].values
	}
	s := &shared{context.Background(), make([]context.Context, len(batch))}
	for i, c := range batch {
		s.callers[i] = &c.values
	}
	return s
}

// Callers returns the contexts of the callers who share the round trip of ctx; nil if it is not
// shared. Only the values of the contexts count.
func Callers(ctx context.Context) []context.Context {
	if s, ok := ctx.Value(callersOf{}).(*shared); ok {
		return slices.Clone(s.callers)
	}
	return nil
}
