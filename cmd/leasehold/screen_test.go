package main

import (
	"bytes"
	"errors"
	"os"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOnlyATerminalGetsColours(t *testing.T) {
	device, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // a character device, as a terminal is
	require.NoError(t, err)
	defer device.Close()
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()

	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	assert.True(t, newScreen(device).color)
	assert.False(t, newScreen(file).color)
	assert.False(t, newScreen(&bytes.Buffer{}).color)

	t.Setenv("TERM", "dumb")
	assert.False(t, newScreen(device).color)
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	assert.False(t, newScreen(device).color)
}

func TestTheTextIsTheSameWithoutColours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var texts [2]string
		for i := range texts {
			var b bytes.Buffer
			s := newScreen(&b)
			s.color = i == 1
			s.title(1, "Title", "about\nit")
			s.says("ash", "works for %v", time.Second)
			s.note("note")
			s.bar("elm", time.Second, 2*time.Second, 4*time.Second)
			s.verdict("Title", "claim", nil)
			s.verdict("Title", "claim", errors.Join(errors.New("one"), errors.New("two")))
			texts[i] = b.String()
		}
		assert.Equal(t, `
1  Title
   about
   it

    0.000  ash  works for 1s
                note
           elm                 ███████████████
  ✓  Title         claim
  ✗  Title         one; two
`, texts[0])
		assert.Contains(t, texts[1], "\x1b[32m✓\x1b[0m")
		assert.Equal(t, texts[0], regexp.MustCompile("\x1b\\[[0-9]*m").ReplaceAllString(texts[1], ""))
	})
}

func TestABarOfNoTimeIsSeen(t *testing.T) {
	for _, whole := range []time.Duration{0, time.Second} {
		var b bytes.Buffer
		newScreen(&b).bar("ash", 0, 0, whole)
		assert.Equal(t, "           ash  █\n", b.String())
	}
}
