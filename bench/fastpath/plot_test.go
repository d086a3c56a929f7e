package fastpath

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
)

// A chart has lines over two logarithmic axes.
type chart struct {
	title, x, y string
	image       string // its file's name
	lines       []line
}

type line struct {
	name   string
	points []point
}

type point struct{ x, y float64 }

// Sizes of the drawing, in pixels.
const (
	plotWidth, plotHeight = 900, 480
	leftOf, rightOf       = 70, 260 // the plot: scale and names of lines
	above, below          = 40, 50
	nameHeight            = 18
)

// colours are Okabe and Ito's, which the colour-blind can tell apart.
var colours = []string{"#000000", "#e69f00", "#0072b2", "#56b4e9", "#009e73", "#d55e00", "#cc79a7", "#999999"}

// scale is the powers of ten around values, as exponents.
func scale(values []float64) (first, last float64) {
	return math.Floor(math.Log10(slices.Min(values))), math.Ceil(math.Log10(slices.Max(values)))
}

// svg draws the chart.
func (c chart) svg() string {
	var xs, ys []float64
	for _, l := range c.lines {
		for _, p := range l.points {
			xs, ys = append(xs, p.x), append(ys, p.y)
		}
	}
	x0, x1 := scale(xs)
	y0, y1 := scale(ys)
	atX := func(x float64) float64 {
		return leftOf + (math.Log10(x)-x0)/(x1-x0)*(plotWidth-leftOf-rightOf)
	}
	atY := func(y float64) float64 {
		return plotHeight - below - (math.Log10(y)-y0)/(y1-y0)*(plotHeight-above-below)
	}
	var t strings.Builder
	fmt.Fprintf(&t, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %d" font-family="sans-serif" font-size="13">`+"\n", plotWidth, plotHeight, plotHeight)
	t.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	text := func(x, y float64, anchor, s string) {
		fmt.Fprintf(&t, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, escaped(s))
	}
	stroke := func(xa, ya, xb, yb float64) {
		fmt.Fprintf(&t, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#ccc"/>`+"\n", xa, ya, xb, yb)
	}
	for e := x0; e <= x1; e++ {
		x := atX(math.Pow(10, e))
		stroke(x, above, x, plotHeight-below)
		text(x, plotHeight-below+18, "middle", fmt.Sprintf("%.0f", math.Pow(10, e)))
	}
	for e := y0; e <= y1; e++ {
		y := atY(math.Pow(10, e))
		stroke(leftOf, y, plotWidth-rightOf, y)
		text(leftOf-8, y+4, "end", fmt.Sprintf("%.0f", math.Pow(10, e)))
	}
	text((leftOf+plotWidth-rightOf)/2, plotHeight-10, "middle", c.x)
	text(10, 22, "start", c.title+" ("+c.y+")")
	names := c.nameHeights(atY)
	for i, l := range c.lines {
		colour := colours[i%len(colours)]
		var way []string
		for _, p := range l.points {
			way = append(way, fmt.Sprintf("%.1f,%.1f", atX(p.x), atY(p.y)))
			fmt.Fprintf(&t, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", atX(p.x), atY(p.y), colour)
		}
		fmt.Fprintf(&t, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(way, " "), colour)
		last := l.points[len(l.points)-1]
		fmt.Fprintf(&t, `<line x1="%.1f" y1="%.1f" x2="%d" y2="%.1f" stroke="%s" stroke-dasharray="2 3"/>`+"\n",
			atX(last.x), atY(last.y), plotWidth-rightOf+8, names[i]-4, colour)
		fmt.Fprintf(&t, `<text x="%d" y="%.1f" fill="%s">%s</text>`+"\n", plotWidth-rightOf+12, names[i], colour, escaped(l.name))
	}
	t.WriteString("</svg>\n")
	return t.String()
}

// nameHeights are where lines' names stand: beside their ends, and none over
// another.
func (c chart) nameHeights(atY func(float64) float64) []float64 {
	heights, order := make([]float64, len(c.lines)), make([]int, len(c.lines))
	for i, l := range c.lines {
		order[i] = i
		heights[i] = atY(l.points[len(l.points)-1].y) + 4
	}
	slices.SortFunc(order, func(a, b int) int { return int(math.Copysign(1, heights[b]-heights[a])) }) // lowest first
	limit := float64(plotHeight - below)
	for _, i := range order {
		heights[i] = min(heights[i], limit)
		limit = heights[i] - nameHeight
	}
	return heights
}

func escaped(s string) string {
	var t strings.Builder
	_ = xml.EscapeText(&t, []byte(s)) // a builder takes all
	return t.String()
}

func TestChartIsWellFormedAndNamesDoNotOverlap(t *testing.T) {
	c := chart{title: "a < b", x: "rules", y: "ns", lines: []line{
		{"first", []point{{10, 200}, {4096, 210}}},
		{"second & more", []point{{10, 200}, {4096, 211}}},
		{"third", []point{{10, 300}, {4096, 60000}}},
	}}
	decoder, texts := xml.NewDecoder(strings.NewReader(c.svg())), ""
	for {
		token, err := decoder.Token()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if data, ok := token.(xml.CharData); ok {
			texts += string(data)
		}
	}
	for _, want := range []string{"a < b", "second & more", "100000", "10000"} {
		if !strings.Contains(texts, want) {
			t.Errorf("the chart's words are %q, without %q", texts, want)
		}
	}
	heights := c.nameHeights(func(y float64) float64 { return 400 - y/1000 })
	slices.Sort(heights)
	for i := range heights[1:] {
		if heights[i+1]-heights[i] < nameHeight {
			t.Errorf("names stand at %v, nearer than %d", heights, nameHeight)
		}
	}
}
