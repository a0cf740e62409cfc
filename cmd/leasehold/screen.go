package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// A screen prints what happens, when and to whom. It may be used by many goroutines.
type screen struct {
	mu       sync.Mutex // guards w
	w        io.Writer
	terminal bool // it can be drawn on
	color    bool
	start    time.Time
}

// newScreen colours only what a terminal shows, and nothing if NO_COLOR is set (no-color.org).
func newScreen(w io.Writer) *screen {
	s := &screen{w: w, start: time.Now()}
	if f, ok := w.(*os.File); ok && os.Getenv("TERM") != "dumb" {
		info, err := f.Stat()
		s.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	s.color = s.terminal && os.Getenv("NO_COLOR") == ""
	return s
}

// The colours, as the parameters of SGR.
const (
	bold  = "1"
	faint = "2"
	red   = "31"
	green = "32"
)

var workerColors = map[string]string{"ash": "36", "elm": "33", "fir": "35", "oak": "34", "yew": "32"}

func (s *screen) paint(color, text string) string {
	if !s.color || color == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

func (s *screen) println(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.w, strings.TrimRight(text, " "))
}

// redraw replaces so many lines, the last ones, by others, and returns how many there are now.
func (s *screen) redraw(old int, lines []string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := ""
	if old > 0 {
		text = fmt.Sprintf("\x1b[%dA\x1b[J", old)
	}
	fmt.Fprint(s.w, text+strings.Join(lines, "\n")+"\n")
	return len(lines)
}

// says prints a line of the worker's, with the seconds since the start.
func (s *screen) says(who, format string, args ...any) {
	at := fmt.Sprintf("%9.3f", time.Since(s.start).Seconds())
	s.println(s.paint(faint, at) + "  " + s.paint(workerColors[who], who) + "  " + fmt.Sprintf(format, args...))
}

// note prints a line of nobody's, below what the workers say.
func (s *screen) note(format string, args ...any) {
	s.println(indent + fmt.Sprintf(format, args...))
}

// indent is as wide as the time and a worker's name.
const indent = "                "

// title begins the nth scene.
func (s *screen) title(n int, title, about string) {
	s.println("\n" + s.paint(bold, fmt.Sprintf("%d  %s", n, title)) + "\n   " + strings.ReplaceAll(about, "\n", "\n   ") + "\n")
}

// verdict prints one line of the summary.
func (s *screen) verdict(title, claim string, err error) {
	mark := s.paint(green, "✓")
	if err != nil {
		mark, claim = s.paint(red, "✗"), strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	s.println(fmt.Sprintf("  %s  %-14s%s", mark, title, claim))
}

// bar draws the time from the one moment to the other, as a part of the whole.
func (s *screen) bar(who string, from, to, whole time.Duration) {
	const width = 60
	column := func(d time.Duration) int { return int(min(d, whole) * width / max(whole, 1)) }
	left := column(from)
	s.println(strings.Repeat(" ", 11) + s.paint(workerColors[who], who) + "  " +
		strings.Repeat(" ", left) + s.paint(workerColors[who], strings.Repeat("█", max(column(to)-left, 1))))
}
