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
// is one command. The list is one of its own, since a hook may keep it.
func share(posts []post) context.Context {
	if len(posts) == 1 && len(posts[0].of) == 1 {
		return &posts[0].of[0].values
	}
	s := &shared{Context: context.Background()}
	for _, p := range posts {
		for _, c := range p.of {
			s.callers = append(s.callers, &c.values)
		}
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
