package guarantees_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain lets more tests run side by side than there are processors: those that ask for it wait for servers and other
// processes for most of their time.
func TestMain(m *testing.M) {
	flag.Parse()
	byHand := false
	flag.Visit(func(f *flag.Flag) { byHand = byHand || f.Name == "test.parallel" })
	if !byHand {
		_ = flag.Set("test.parallel", "6")
	}
	os.Exit(m.Run())
}
