package bench

import "slices"

// Spread summarizes the values of all rounds of a figure.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spread(values []float64) Spread {
	s := slices.Sorted(slices.Values(values))
	if len(s) == 0 {
		return Spread{}
	}
	return Spread{Median: (s[len(s)/2] + s[(len(s)-1)/2]) / 2, Min: s[0], Max: s[len(s)-1]}
}

// Figure is one measured value. Floor and Ratio are nil if there is no floor.
type Figure struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Value Spread  `json:"value"`
	Floor *Spread `json:"floor,omitempty"`
	Ratio *Spread `json:"ratio,omitempty"` // value divided by floor, in each round

	// LowerIsBetter is true for durations and costs, and false for rates.
	LowerIsBetter bool `json:"lower_is_better"`
}

// Result is the result of a scenario.
type Result struct {
	Scenario string   `json:"scenario"`
	Figures  []Figure `json:"figures"`
	Notes    []string `json:"notes,omitempty"` // facts needed to read the figures
}

// Find returns the figure with a name.
func (r Result) Find(name string) (Figure, bool) {
	i := slices.IndexFunc(r.Figures, func(f Figure) bool { return f.Name == name })
	if i < 0 {
		return Figure{}, false
	}
	return r.Figures[i], true
}

// series collects the rounds of one figure.
type series struct {
	figure        Figure
	values, floor []float64
}

func higher(name, unit string) *series { return &series{figure: Figure{Name: name, Unit: unit}} }

func lower(name, unit string) *series {
	return &series{figure: Figure{Name: name, Unit: unit, LowerIsBetter: true}}
}

// add adds a round without a floor.
func (s *series) add(value float64) { s.values = append(s.values, value) }

// pair adds a round with its floor.
func (s *series) pair(value, floor float64) {
	s.values, s.floor = append(s.values, value), append(s.floor, floor)
}

func (s *series) result() Figure {
	f := s.figure
	f.Value = spread(s.values)
	if len(s.floor) == 0 {
		return f
	}
	ratios := make([]float64, len(s.floor))
	for i, floor := range s.floor {
		if floor > 0 {
			ratios[i] = s.values[i] / floor
		}
	}
	floor, ratio := spread(s.floor), spread(ratios)
	f.Floor, f.Ratio = &floor, &ratio
	return f
}

// result builds the result of a scenario.
func result(scenario string, all ...*series) Result {
	r := Result{Scenario: scenario}
	for _, s := range all {
		if len(s.values) > 0 {
			r.Figures = append(r.Figures, s.result())
		}
	}
	return r
}
