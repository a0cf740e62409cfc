// Package fault says what an error means that a Redis client answered: whether time can cure it, what else should be done about
// it, and which key it is about.
//
// It is the one place that knows the texts of servers, from Redis 6.0 to Redis 8 and Valkey.
package fault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Error is an error of the client's, read.
type Error struct {
	Err error
	// Passes: time can cure it. Redis gave no answer, or one that it does not give for ever: it is starting, fails over, is full
	// or busy. Every other error would be met again.
	Passes bool
	Advice string // what to do about it, if that is known
}

func (e *Error) Error() string {
	if e.Advice == "" {
		return e.Err.Error()
	}
	return e.Err.Error() + " (" + e.Advice + ")"
}

// Unwrap returns the client's error. A server's error is a redis.Error, with a text that is fit for people.
func (e *Error) Unwrap() error { return e.Err }

// Place is where an error was met: it has the names that a server's text leaves out. The zero Place has none.
type Place struct {
	Script string             // the source of the script that was run
	Key    func(n int) string // the nth key that the script was given, from 1; "" if there is none
	Direct bool               // the client talks to the servers that it was given and follows no redirection
}

// Read reads an error of a client's. It returns nil for nil.
func Read(err error, at Place) error {
	var server redis.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &server):
		return at.server(err, server.Error())
	case errors.Is(err, redis.ErrClosed):
		return &Error{Err: err, Advice: "it was closed before the Locker was"}
	case errors.Is(err, errBroken), isMisconfigured(err):
		return &Error{Err: err}
	}
	return &Error{Err: Detached(err), Passes: true} // the connection, its pool, or something of a hook's
}

// Detached returns the error as one that matches no error of a context. No context of a caller reaches the client, but a dial that
// takes too long matches context.DeadlineExceeded all the same, and callers take that for their own deadline.
func Detached(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return detached{err}
	}
	return err
}

type detached struct{ err error }

func (e detached) Error() string      { return e.err.Error() }
func (e detached) As(target any) bool { return errors.As(e.err, target) }
func (e detached) Is(target error) bool {
	return target != context.DeadlineExceeded && target != context.Canceled && errors.Is(e.err, target)
}

// Passes reports whether time can cure an error, read or not.
func Passes(err error) bool {
	read, ok := errors.AsType[*Error](err)
	if !ok {
		read, ok = Read(err, Place{}).(*Error)
	}
	return ok && read.Passes
}

// Weigh is Read for a call that is somebody else's, with a script and arguments of theirs: the text stays as it is, and only a known
// trouble of the server or of the connection passes.
func Weigh(err error) error {
	server, isServers := errors.AsType[redis.Error](err)
	_, isNetwork := errors.AsType[net.Error](err)
	switch {
	case isServers && Passes(server), isNetwork && !errors.Is(err, context.Canceled) && !isMisconfigured(err),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return &Error{Err: err, Passes: true}
	}
	return err
}

// errBroken: the client does not come back from a call as it should. That is a mistake in its code or in a hook's, or it is a nil
// client in some disguise.
var errBroken = errors.New("the redis client")

// Panicked is the error of a call in which the client, or a hook of it, panicked.
func Panicked(p any) error { return fmt.Errorf("%w panicked: %v", errBroken, p) }

// ErrExited is the error of a call in which the client, or a hook of it, ended the goroutine, as runtime.Goexit does.
var ErrExited = fmt.Errorf("%w ended the goroutine that called it", errBroken)

// isMisconfigured reports whether an error on the way to the server says that the way is the wrong one.
func isMisconfigured(err error) bool {
	return Has[*net.AddrError](err) || Has[tls.RecordHeaderError](err) || Has[*tls.CertificateVerificationError](err) ||
		Has[x509.UnknownAuthorityError](err) || Has[x509.HostnameError](err) || Has[x509.CertificateInvalidError](err)
}

// Has reports whether there is an error of type E in the tree of err.
func Has[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// passing are the codes of the server errors that time can cure.
var passing = []string{
	"LOADING", "READONLY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "MISCONF", "OOM", "BUSY",
	"MOVED", "ASK", "UNBLOCKED",
}

// server reads an error of the server's.
func (at Place) server(err error, raw string) error {
	text, line := clean(raw)
	code, _, _ := strings.Cut(text, " ")
	e := &Error{Err: err}
	switch {
	case code == "MOVED" || code == "ASK":
		e.Passes = !at.Direct
	default:
		e.Passes = slices.Contains(passing, code) || strings.HasPrefix(text, "ERR max number of clients")
	}
	if e.Passes {
		text = unnamed.ReplaceAllString(text, "") // it is not the key's fault
	} else {
		spot := at.spot(line)
		e.Advice = advice(text, spot)
		text = at.name(text, spot)
	}
	if text != raw {
		e.Err = Said(text)
	}
	return e
}

// Said is an error of the server's with a text of ours: without what is of no use to people, and without the arguments of the
// command, among which is the token that proves ownership.
type Said string

func (s Said) Error() string { return string(s) }

// RedisError makes it a redis.Error.
func (Said) RedisError() {}
