package policy

// icmpNames are the names of one protocol's types and of their codes: those of nft,
// and those of iptables where they differ and are in use.
type icmpNames struct {
	key   string
	proto uint8
	types map[string]uint8
	codes map[uint8]map[string]uint8 // by type
}

var icmp4Names = icmpNames{
	key:   "icmp",
	proto: protoICMP,
	types: map[string]uint8{
		"echo-reply": 0, "destination-unreachable": 3, "source-quench": 4, "redirect": 5, "echo-request": 8,
		"router-advertisement": 9, "router-solicitation": 10, "time-exceeded": 11, "parameter-problem": 12,
		"timestamp-request": 13, "timestamp-reply": 14, "info-request": 15, "info-reply": 16,
		"address-mask-request": 17, "address-mask-reply": 18,
	},
	codes: map[uint8]map[string]uint8{
		3: {
			"net-unreachable": 0, "host-unreachable": 1, "prot-unreachable": 2, "port-unreachable": 3,
			"frag-needed": 4, "net-prohibited": 9, "host-prohibited": 10, "admin-prohibited": 13,
			"network-unreachable": 0, "protocol-unreachable": 2, "fragmentation-needed": 4, "source-route-failed": 5,
			"network-unknown": 6, "host-unknown": 7, "network-prohibited": 9, "communication-prohibited": 13,
			"host-precedence-violation": 14, "precedence-cutoff": 15,
		},
		5:  {"network-redirect": 0, "host-redirect": 1},
		11: {"ttl-zero-during-transit": 0, "ttl-zero-during-reassembly": 1},
		12: {"ip-header-bad": 0, "required-option-missing": 1},
	},
}

var icmp6Names = icmpNames{
	key:   "icmpv6",
	proto: protoICMPv6,
	types: map[string]uint8{
		"destination-unreachable": 1, "packet-too-big": 2, "time-exceeded": 3, "parameter-problem": 4,
		"echo-request": 128, "echo-reply": 129,
		"mld-listener-query": 130, "mld-listener-report": 131, "mld-listener-done": 132,
		"nd-router-solicit": 133, "nd-router-advert": 134, "nd-neighbor-solicit": 135, "nd-neighbor-advert": 136,
		"nd-redirect": 137, "router-renumbering": 138, "ind-neighbor-solicit": 141, "ind-neighbor-advert": 142,
		"mld2-listener-report": 143,
	},
	codes: map[uint8]map[string]uint8{
		1: {
			"no-route": 0, "admin-prohibited": 1, "communication-prohibited": 1, "beyond-scope": 2,
			"addr-unreachable": 3, "address-unreachable": 3, "port-unreachable": 4, "policy-fail": 5, "reject-route": 6,
		},
		3: {"ttl-zero-during-transit": 0, "ttl-zero-during-reassembly": 1},
		4: {"bad-header": 0, "unknown-header-type": 1, "unknown-option": 2},
	},
}
