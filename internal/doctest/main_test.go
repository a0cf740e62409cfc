// Package doctest_test checks the documents against the code, and the code against the rules of the repository: which package
// imports which, and how large each may be. Every test runs in the root of the module.
package doctest_test

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
