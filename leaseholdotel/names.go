package leaseholdotel

import "sync"

// maxNames bounds the names of WithMetricName. OpenTelemetry's SDK keeps 2,000 series of an instrument unless told
// otherwise, and then merges all further ones into one without any label; each name has thirteen series of
// leasehold.acquires.
const maxNames = 100

// otherName is what a key is counted under that has no name, or one too many.
const otherName = "other"

// names are the names that have been met, and that of the others.
type names struct {
	of func(key string) string // nil: metrics have no name

	mu    sync.RWMutex // guards known
	known map[string]bool
}

func (n *names) init(of func(key string) string) {
	n.of, n.known = of, map[string]bool{otherName: true}
}

// name returns the name under which a key is counted, and whether it has been met for the first time.
func (n *names) name(key string) (name string, isNew bool) {
	name = n.of(key)
	if name == "" {
		name = otherName
	}
	n.mu.RLock()
	met := n.known[name]
	n.mu.RUnlock()
	if met {
		return name, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.known) > maxNames && !n.known[name] {
		return otherName, false
	}
	isNew = !n.known[name]
	n.known[name] = true
	return name, isNew
}
