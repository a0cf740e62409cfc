package main

import (
	"context"
	"fmt"
)

// turn is one measurement of a round.
type turn struct {
	as      record // its Case and Column
	measure func() (map[string]float64, error)
}

// takeTurns measures every turn once per round. Each round begins with another, so that a slow minute of the machine meets
// all of them alike. Compare sees a round's values, by turn, before they are written down.
func (b *bench) takeTurns(ctx context.Context, rounds int, turns []turn, compare func(measured []map[string]float64)) error {
	for round := range rounds {
		measured := make([]map[string]float64, len(turns))
		for k := range turns {
			i := (k + round) % len(turns)
			values, err := turns[i].measure()
			if err != nil {
				return fmt.Errorf("%s %s: %w", turns[i].as.Column, turns[i].as.Case, err)
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			measured[i] = values
		}
		compare(measured)
		for i, t := range turns {
			t.as.Round, t.as.Values = round, measured[i]
			if err := b.add(t.as); err != nil {
				return err
			}
		}
	}
	return nil
}

// divide sets each turn's value at ratio to its value at key divided by that of the turn that is its base. A turn without a
// base in the round gets none.
func divide(turns []turn, measured []map[string]float64, key, ratio string, base func(turn record) (name, column string)) {
	for i, t := range turns {
		name, column := base(t.as)
		for j, other := range turns {
			if other.as.Case == name && other.as.Column == column {
				measured[i][ratio] = measured[i][key] / measured[j][key]
			}
		}
	}
}
