package policy

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// The part of YAML that a policy uses is small: one document of mappings,
// sequences and plain or quoted scalars. Everything else is refused on the
// tokens, before a tree is built, because anchors, deep nesting and some kinds
// of bad syntax make a parser's work grow much faster than the file.
const (
	maxDepth   = 32   // of [ and {
	maxColumn  = 200  // of -, ? and : in block style
	maxMapKeys = 4096 // of one block mapping
)

type kind uint8

const (
	kindNull kind = iota
	kindBool
	kindNumber
	kindString
	kindSequence
	kindMapping
)

var kindNames = [...]string{"nothing", "a boolean", "a number", "a string", "a sequence", "a mapping"}

func (k kind) String() string { return kindNames[k] }

// node is a YAML value with its place in the file and in the tree.
type node struct {
	kind   kind
	pos    Pos
	text   string // scalars: as written, without quotes
	quoted bool
	items  []*node // sequences
	fields []field // mappings, in the order of the file

	parent *node
	name   string // the key in a mapping
	index  int    // the place in a sequence, where name is ""
}

type field struct {
	key   string
	pos   Pos
	value *node
}

// path returns the node's place in the tree, such as "rules[3].src".
func (n *node) path() string {
	switch {
	case n.parent == nil:
		return ""
	case n.name == "":
		return fmt.Sprintf("%s[%d]", n.parent.path(), n.index)
	}
	return n.parent.child(n.name)
}

// child returns the path of a key below the node.
func (n *node) child(key string) string {
	if !plainKey(key) {
		key = quote(key)
	}
	if n.parent == nil {
		return key
	}
	return n.path() + "." + key
}

// plainKey tells whether a key can stand in a message without quotes.
func plainKey(key string) bool {
	for _, c := range []byte(key) {
		if !isNameByte(toLower(c)) && c != '.' {
			return false
		}
	}
	return key != "" && len(key) <= 60
}

// isNameByte tells whether c may stand in the names that a policy gives.
func isNameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}

// scalar tells whether the node is a string or a number.
func (n *node) scalar() bool { return n.kind == kindString || n.kind == kindNumber }

// id returns a number that nodes share which say the same in the same words. It
// is never 0.
func (n *node) id() uint32 {
	h := fnv.New32a()
	n.write(h)
	return max(h.Sum32(), 1)
}

// write writes the node so that no other node is written the same.
func (n *node) write(w io.Writer) {
	fmt.Fprintf(w, "%d %q %d %d\n", n.kind, n.text, len(n.items), len(n.fields))
	for _, item := range n.items {
		item.write(w)
	}
	for _, f := range n.fields {
		fmt.Fprintf(w, "%q\n", f.key)
		f.value.write(w)
	}
}

// each returns the node's items, or the node itself where it is no sequence:
// many keys take one value or several.
func (n *node) each() []*node {
	if n.kind == kindSequence {
		return n.items
	}
	return []*node{n}
}

// readYAML returns the tree of a policy file's only document. Where it returns
// nil it has reported why.
func readYAML(r *report, data []byte) *node {
	data = trimBOM(data)
	if pos, what := notText(data); what != "" {
		r.errorf(pos, "%s; expected a text file in UTF-8", what)
		return nil
	}
	tokens := lexer.Tokenize(string(data))
	if !checkTokens(r, tokens) {
		return nil
	}
	file, err := parseTokens(tokens)
	if err != nil {
		pos, msg := syntaxError(err)
		r.errorf(pos, "not YAML: %s", msg)
		return nil
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		r.errorf(Pos{}, "the policy is empty; expected at least version and zones")
		return nil
	}
	c := converter{r}
	return c.convert(file.Docs[0].Body, &node{})
}

// trimBOM removes the mark that some editors put before UTF-8.
func trimBOM(data []byte) []byte { return bytes.TrimPrefix(data, []byte("\ufeff")) }

// notText finds the first byte that no policy has.
func notText(data []byte) (Pos, string) {
	pos := Pos{1, 1}
	for len(data) > 0 {
		c, size := utf8.DecodeRune(data)
		switch {
		case c == utf8.RuneError && size == 1:
			return pos, fmt.Sprintf("byte 0x%02x is not UTF-8", data[0])
		case c < ' ' && c != '\t' && c != '\n' && c != '\r', c == 0x7f:
			return pos, fmt.Sprintf("control character 0x%02x", c)
		}
		pos.Column++
		if c == '\n' {
			pos = Pos{pos.Line + 1, 1}
		}
		data = data[size:]
	}
	return Pos{}, ""
}

// refused maps the tokens of YAML that policies do not use to their names.
var refused = map[token.Type]string{
	token.AnchorType:         "anchors (&) are not used in policies",
	token.AliasType:          "aliases (*) are not used in policies",
	token.MergeKeyType:       "merge keys (<<) are not used in policies",
	token.TagType:            "tags (!) are not used in policies",
	token.DirectiveType:      "directives (%) are not used in policies",
	token.LiteralType:        "block scalars (|) are not used in policies",
	token.FoldedType:         "block scalars (>) are not used in policies",
	token.MappingKeyType:     "complex keys (?) are not used in policies",
	token.DocumentEndType:    "",
	token.DocumentHeaderType: "",
}

// checkTokens refuses what policies do not use, and all that would cost the
// parser more than time linear in the file.
func checkTokens(r *report, tokens token.Tokens) bool {
	var open []*token.Token
	var keys blockKeys
	var last token.Type
	for i, tk := range tokens {
		pos := tokenPos(tk)
		msg := ""
		switch tk.Type {
		case token.InvalidType:
			msg = "not YAML: " + firstLine(tk.Error)
			if strings.HasSuffix(strings.TrimSpace(tk.Value), "@") {
				msg = `not YAML: a value that begins with @ needs quotes, such as "@admins"`
			}
		case token.AnchorType, token.MergeKeyType, token.TagType, token.DirectiveType,
			token.LiteralType, token.FoldedType, token.MappingKeyType:
			msg = refused[tk.Type]
		case token.AliasType:
			msg = refused[tk.Type] + `; a value that begins with * needs quotes, such as "*.example.com"`
		case token.DocumentHeaderType:
			if i > 0 {
				msg = "a second document begins here; expected one"
			}
		case token.DocumentEndType:
			if i != len(tokens)-1 {
				msg = "the document ends here; expected nothing after it"
			}
		case token.MappingStartType, token.SequenceStartType:
			if open = append(open, tk); len(open) > maxDepth {
				msg = fmt.Sprintf("nested too deeply; expected at most %d levels", maxDepth)
			}
		case token.MappingEndType, token.SequenceEndType:
			if len(open) == 0 {
				msg = fmt.Sprintf("not YAML: %s without its beginning", tk.Value)
			} else {
				open = open[:len(open)-1]
			}
		case token.CollectEntryType:
			if last == token.CollectEntryType || last == token.SequenceStartType || last == token.MappingStartType {
				msg = "not YAML: a comma with nothing before it"
			}
		case token.SequenceEntryType, token.MappingValueType:
			if len(open) > 0 {
				if tk.Type == token.SequenceEntryType {
					msg = "not YAML: a - inside brackets or braces; expected a sequence in [ and ]"
				}
				break
			}
			if last == token.MappingValueType && tk.Type == last && tk.Prev.Position.Line == pos.Line {
				msg = "not YAML: a second : where a value belongs"
			} else if pos.Column > maxColumn {
				msg = fmt.Sprintf("nested too deeply or a key too long; expected at most column %d", maxColumn)
			} else if keys.add(tk) > maxMapKeys {
				msg = fmt.Sprintf("too many keys in one mapping; expected at most %d", maxMapKeys)
			}
		}
		if msg != "" {
			r.errorf(pos, "%s", msg)
			return false
		}
		last = tk.Type
	}
	return true
}

// blockKeys counts the keys of each block mapping that is open. Indentation
// tells which are.
type blockKeys []struct{ column, count int }

// add returns how many keys the mapping has to which the indicator tk belongs.
func (b *blockKeys) add(tk *token.Token) int {
	column := tk.Position.Column
	if tk.Type == token.MappingValueType && tk.Prev != nil {
		column = tk.Prev.Position.Column
	}
	stack := *b
	for len(stack) > 0 && stack[len(stack)-1].column > column {
		stack = stack[:len(stack)-1]
	}
	if len(stack) == 0 || stack[len(stack)-1].column < column {
		stack = append(stack, struct{ column, count int }{column, 0})
	}
	*b = stack
	top := &stack[len(stack)-1]
	if tk.Type == token.MappingValueType {
		top.count++
	}
	return top.count
}

// parseTokens is parser.Parse. A panic in it must not take down a firewall
// that is only asked to check a new policy.
func parseTokens(tokens token.Tokens) (file *ast.File, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			file, err = nil, fmt.Errorf("the YAML parser gave up: %v", cause)
		}
	}()
	// Duplicate keys are found by the converter, with both positions.
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

// syntaxError takes place and message out of an error of the YAML package, whose
// text is many lines with a drawing of the place.
func syntaxError(err error) (Pos, string) {
	if e, ok := err.(interface {
		GetMessage() string
		GetToken() *token.Token
	}); ok {
		if tk := e.GetToken(); tk != nil {
			return tokenPos(tk), firstLine(e.GetMessage())
		}
		return Pos{}, firstLine(e.GetMessage())
	}
	return Pos{}, firstLine(err.Error())
}

// firstLine keeps a message of the YAML package on one line.
func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return strings.NewReplacer("\t", `\t`, "\r", `\r`).Replace(s)
}

// tokenPos returns the place of a token. Columns count characters.
func tokenPos(tk *token.Token) Pos {
	if tk == nil || tk.Position == nil {
		return Pos{}
	}
	return Pos{tk.Position.Line, tk.Position.Column}
}

// converter makes nodes of the YAML package's tree.
type converter struct{ *report }

// convert fills n, whose place in the tree is set, from the tree. It returns
// nil where it had something to report that makes the value useless.
func (c converter) convert(v ast.Node, n *node) *node {
	tk := v.GetToken()
	n.pos = tokenPos(tk)
	switch v := v.(type) {
	case *ast.NullNode:
		n.kind = kindNull
	case *ast.BoolNode:
		n.kind = kindBool
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		n.kind = kindNumber
	case *ast.StringNode:
		n.kind = kindString
		n.quoted = tk.Type == token.SingleQuoteType || tk.Type == token.DoubleQuoteType
	case *ast.SequenceNode:
		n.kind = kindSequence
		for i, item := range v.Values {
			n.items = append(n.items, c.convert(item, &node{parent: n, index: i}))
		}
	case *ast.MappingNode:
		n.kind = kindMapping
		c.mapping(v, n)
	case *ast.MappingValueNode:
		n.kind = kindMapping
		c.mapping(ast.Mapping(tk, false, v), n)
	default:
		c.errorf(n.pos, "%s is not used in policies; expected a mapping, a sequence or a scalar", v.Type())
	}
	if n.kind <= kindString && tk != nil {
		n.text = tk.Value
	}
	return n
}

// mapping converts the pairs of a mapping. YAML allows a key twice in no mapping,
// and which of the two would count is nothing to guess at.
func (c converter) mapping(v *ast.MappingNode, n *node) {
	if len(v.Values) > 0 && !v.IsFlowStyle {
		n.pos = tokenPos(v.Values[0].Key.GetToken())
	}
	seen := make(map[string]Pos, len(v.Values))
	for _, pair := range v.Values {
		tk := pair.Key.GetToken()
		key, pos := tk.Value, tokenPos(tk)
		if first, twice := seen[key]; twice {
			c.errorf(pos, "%s is there twice; the first is at %v", n.child(key), first)
			continue
		}
		seen[key] = pos
		value := c.convert(pair.Value, &node{parent: n, name: key})
		n.fields = append(n.fields, field{key, pos, value})
	}
}
