// Package policy is the language in which hybridfw is told what to do: it
// parses and validates policy files and gives their plain meaning (Match).
//
// # The file
//
// A policy is one YAML document of mappings, sequences and scalars. It is read
// strictly: what is unknown, of the wrong type, there twice, without effect by
// mistake or not built yet is an error with file, line and column. Anchors,
// aliases, tags, block scalars and further documents are refused. Strings that
// begin with @ or *, and IPv6 addresses, need quotes.
//
//	version: 1
//	zones:                    # at least one; "host" is the host itself
//	  wan: [eth0]
//	  lan: [eth1, "br-*"]     # * any characters, ? one; a name beats a glob
//	defaults:                 # for packets that no rule matches
//	  input: drop             # accept or drop
//	  forward: drop
//	  output: accept
//	failure:
//	  no_listener: closed     # open or closed: user space is gone
//	  overload: open          # open or closed: queue or socket full, or over its limits
//	  undecided: accept       # accept or drop: budget spent, no step decided
//	  malformed: drop         # accept or drop: could not be parsed
//	  midstream: inspect      # accept, drop or inspect: TCP without its start
//	queue:                    # packets that may go to user space, or none: no limit
//	  per_src: {rate: 10000/s, burst: 10000, v4: 32, v6: 64}
//	  total: {rate: 100000/s, burst: 20000}
//	offload: none             # or forward: decided flows may pass the stack by
//	marks:
//	  mask: 0x00ff0000        # one run of at least two bits of skb->mark
//
// The values above, but for the zones, and those of until below are those of
// keys that are left out.
//
// # Lists
//
//	lists:
//	  admins: {type: cidr, entries: [192.0.2.0/24, "2001:db8::/48"]}
//	  ads:    {type: domain, file: ads.txt}
//
// A file is relative to the policy's folder and has one entry a line; # begins
// a comment. A prefix with bits set behind its length is an error, and so is an
// IPv4 address written as IPv6. Names are A-labels: "example.com" is that name,
// "*.example.com" all names below it, ".example.com" both. A list of type dynamic has
// from, names, and holds the addresses in DNS answers about them, for as long as their
// records say or for ttl seconds.
//
// # Rules
//
// The first rule that matches decides. Each condition that is left out matches
// everything; one with several values matches if one of them does.
//
//	rules:
//	  - name: web             # required and unique: counters are called so
//	    from: lan             # a zone or host
//	    to: wan
//	    src: ["@admins", 192.0.2.7]
//	    dst: "2001:db8::/32"
//	    proto: [tcp, udp]     # tcp udp icmp icmpv6 sctp gre esp ah, or a number
//	    sport: 1024-65535     # ports need proto tcp, udp or both
//	    dport: [80, 443, 8000-8080]
//	    # flags: syn          # needs proto tcp alone
//	    # icmp: [echo-request, destination-unreachable/port-unreachable]
//	    vlan: [10, 20-30]     # of the outer tag; or none
//	    dscp: [ef, "af11"]
//	    fragment: false       # or true: first fragments, which the later follow
//	    rewrite: {dscp: ef, ttl: 64, mss: pmtu} # of what passes; mss: or a number
//	    offload: forward      # or none; without it the policy's
//	    action: inspect       # accept, drop or inspect
//	    until: {packets: 16, bytes: 32KiB}
//	    steps:
//	      - {sni: "@ads", action: drop, log: true}
//	      - {qname: .example.com, action: rewrite, answer: 192.0.2.1}
//	      - {qname: "@ads", qtype: [HTTPS, SVCB], action: drop}
//	      - {log: true}
//	      - {action: accept}
//
// A "!" before each of a condition's values (all but flags and fragment) negates
// it: src: ["!@bots", "!10.0.0.0/8"] matches where none of them does.
//
// Of the flags, the word syn stands for the first packet of a connection: SYN
// set; ACK, RST and FIN clear. A sequence such as [ack, "!syn"] names flags that
// are set and, after "!", clear; it says nothing about the others.
//
// # Inspecting rules
//
// They need from (a zone), proto (tcp, udp or both) and steps; until is what
// one flow may cost before failure.undecided decides.
//
// The first step that matches what was seen and has an action decides; one with
// log alone logs and goes on. A step on sni matches the server name of a TLS
// hello, one on qname that of a DNS question over UDP; a hello without a name
// is matched by neither. Where no step decides, failure.undecided does.
//
// A step with action rewrite changes the answers that come back through the
// host, so its rule should have to: a zone. What the host itself answers cannot
// be rewritten yet; failure.undecided decides about such questions.
package policy
