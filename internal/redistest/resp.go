package redistest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// readFrame reads one whole RESP2 or RESP3 value and returns its bytes.
func readFrame(r *bufio.Reader) ([]byte, error) {
	return appendFrame(nil, r)
}

func appendFrame(b []byte, r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	b = append(b, line...)
	kind := line[0]
	if !strings.ContainsRune("$=!*~>%|", rune(kind)) {
		return b, nil // the line is the value
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
	if err != nil {
		return nil, fmt.Errorf("redistest: not RESP: %q", line)
	}
	if n < 0 {
		return b, nil // a RESP2 null
	}
	switch kind {
	case '$', '=', '!':
		start := len(b)
		b = append(b, make([]byte, n+len("\r\n"))...)
		_, err := io.ReadFull(r, b[start:])
		return b, err
	case '%':
		n *= 2
	case '|':
		n = 2*n + 1 // an attribute stands in front of the value that it belongs to
	}
	for range n {
		if b, err = appendFrame(b, r); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// requestName returns the lower-case name of the command in a request frame,
// or "" if it is not the array of bulk strings that clients send.
func requestName(frame []byte) string {
	_, rest, _ := bytes.Cut(frame, []byte("\r\n$"))
	_, rest, _ = bytes.Cut(rest, []byte("\r\n"))
	name, _, _ := bytes.Cut(rest, []byte("\r\n"))
	return strings.ToLower(string(name))
}
