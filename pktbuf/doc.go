// Package pktbuf looks into and changes packets in memory that the caller owns.
// It needs nothing but the standard library and no particular system, and it
// never allocates: not to make a view, not to parse, not to change.
//
// # Views
//
// A [View] is a value over a slice that holds one packet:
//
//	var v pktbuf.View
//	if err := v.Init(pktbuf.IPv4, buf[:n], nil); err != nil { ... }
//	var flow pktbuf.Flow
//	known, err := v.ParseFlow(&flow)
//
// The packet stays where it was received. Its length is the packet and its
// spare capacity is room to grow: buf[:n:n] is a packet that may be read,
// changed in place and shortened, never lengthened. Memory for growth can also
// be given apart from the packet, and is used only when a change needs it. A
// change that does not fit is [ErrNoRoom]. Where the received memory is wanted
// back at once, [View.InitCopy] makes the view over a copy. [View.InitIPv4]
// makes the view and parses the most common packets in one step.
//
// Parse checks every length once; afterwards headers are named byte slices with
// accessors of one line ([Ethernet], [IPv4Header], [IPv6Header], [TCP], [UDP],
// [ICMP], [ICMPv6], ...), nil where there is no such header. It refuses what a
// host would refuse or read otherwise than a firewall: lengths that contradict
// each other, fragments beyond 65535 bytes or too small for their transport
// header, jumbograms, more than eight IPv6 extension headers.
//
// The link header may be in front of the packet (family [Bridge]: Ethernet with
// up to two VLAN tags). Where it is kept apart, as NFQUEUE does, the packet is
// [IPv4] or [IPv6].
//
// # Changes
//
// Every change checks all it needs and then writes. After an error the packet is
// as it was. After success lengths and checksums are right: updated from the old
// ones (RFC 1624), so that damage done before stays visible to the receiver;
// UDP without a checksum stays without. Packets whose checksum is unfinished,
// as those made on this host and super-packets are, must be announced with
// [View.SetUnfinished]: their first change completes it. [View.Changed] says
// whether the packet has to be sent back at all.
//
// # Sharing
//
// [View.Clone] makes several holders of one packet. Each knows how many bytes
// from the front it may write without another seeing it ([View.WritableLen]);
// [View.MakeWritable] copies what is missing and no more, so that rewriting
// headers costs the same whatever the payload's size and whoever else holds it.
//
// # Verdicts
//
// A changed packet goes back to the kernel without being copied: either as the
// pieces of an iovec ([View.AppendPieces]), or in place, with the message laid
// around it in the bytes in front ([View.Reserve], [View.Frame]).
//
// # For users of libnetfilter_queue
//
//	pktb_alloc                      View.Init, View.InitCopy, on memory of the caller
//	pktb_setup_raw                  View.Init
//	pktb_head_size                  not needed: a View is a value
//	pktb_free                       not needed
//	pktb_data                       View.Bytes, View.AppendPieces
//	pktb_len                        View.Len
//	pktb_tailroom                   View.Room
//	pktb_mac_header                 View.Ethernet
//	pktb_network_header             View.IPv4, View.IPv6
//	pktb_transport_header           View.Transport
//	pktb_mangled                    View.Changed
//	pktb_push                       View.Reserve, View.Frame
//	pktb_pull                       View.Reserve, View.Frame
//	pktb_put                        View.Append
//	pktb_trim                       View.Trim
//	pktb_mangle                     View.Replace
//	nfq_ip_get_hdr                  View.Parse, View.IPv4
//	nfq_ip_set_transport_header     View.Parse
//	nfq_ip_set_checksum             View.Recompute
//	nfq_ip_mangle                   View.ReplacePayload
//	nfq_ip_snprintf                 View.AppendLog
//	nfq_ip6_get_hdr                 View.Parse, View.IPv6
//	nfq_ip6_set_transport_header    View.Parse, View.Extension
//	nfq_ip6_mangle                  View.ReplacePayload
//	nfq_ip6_snprintf                View.AppendLog
//	nfq_tcp_get_hdr                 View.TCP
//	nfq_tcp_get_payload             View.Payload
//	nfq_tcp_get_payload_len         View.PayloadLen
//	nfq_tcp_compute_checksum_ipv4   View.Recompute, View.Complete
//	nfq_tcp_compute_checksum_ipv6   View.Recompute, View.Complete
//	nfq_tcp_mangle_ipv4             View.ReplacePayload
//	nfq_tcp_mangle_ipv6             View.ReplacePayload
//	nfq_tcp_snprintf                View.AppendLog
//	nfq_udp_get_hdr                 View.UDP
//	nfq_udp_get_payload             View.Payload
//	nfq_udp_get_payload_len         View.PayloadLen
//	nfq_udp_compute_checksum_ipv4   View.Recompute, View.Complete
//	nfq_udp_compute_checksum_ipv6   View.Recompute, View.Complete
//	nfq_udp_mangle_ipv4             View.ReplacePayload
//	nfq_udp_mangle_ipv6             View.ReplacePayload
//	nfq_udp_snprintf                View.AppendLog
//	nfq_icmp_get_hdr                View.ICMP, View.ICMPv6
//
// The library's netlink side (nfq_nlmsg_put and so on) has no place here: that
// is for the owner of the queue.
//
// Beyond that library: VLAN tags, all IPv6 extension headers, fragments,
// addresses and ports, TTL, DSCP, ECN, TCP options, packets quoted in ICMP
// errors, SCTP's checksum, source routes and routing headers in the
// pseudo-header, [View.Flow].
package pktbuf
