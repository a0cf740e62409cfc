package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

const versionText = `version says which version of leasehold this is, and what it was built with.

Example:

	leasehold version -json
`

func newVersion() *command {
	c := newCommand("version", "says which version this is", "[-json]", versionText)
	c.servers.local = true
	c.withJSON()
	c.do = func(p *program) (int, error) {
		version := version()
		if c.json {
			p.print(struct {
				Version string `json:"version"`
				Go      string `json:"go"`
				OS      string `json:"os"`
				Arch    string `json:"arch"`
			}{version, runtime.Version(), runtime.GOOS, runtime.GOARCH})
		} else {
			fmt.Fprintf(p.out, "leasehold %s, %s, %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		}
		return exitOK, nil
	}
	return c
}

// stamp is the version that a release build sets, since it is built from a checkout.
var stamp string

func version() string {
	if stamp != "" {
		return stamp
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
