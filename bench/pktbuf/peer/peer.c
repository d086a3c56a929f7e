/* The C library's side of the comparison: a server that does on its standard
 * input's word what libnetfilter_queue does, and answers on its standard output.
 *
 * A request is a struct request, then rep_len bytes of replacement, then len
 * bytes of packet. An answer is a struct answer, then its len bytes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include <libnetfilter_queue/libnetfilter_queue_ipv4.h>
#include <libnetfilter_queue/libnetfilter_queue_ipv6.h>
#include <libnetfilter_queue/libnetfilter_queue_tcp.h>
#include <libnetfilter_queue/libnetfilter_queue_udp.h>
#include <libnetfilter_queue/pktbuff.h>

enum op {
	OP_MANGLE = 1,    /* pktb_mangle at an offset of the packet */
	OP_IP_MANGLE,     /* nfq_ip_mangle, nfq_ip6_mangle */
	OP_TCP_MANGLE,    /* nfq_tcp_mangle_ipv4, _ipv6 */
	OP_UDP_MANGLE,    /* nfq_udp_mangle_ipv4, _ipv6 */
	OP_CHECKSUM,      /* nfq_ip_set_checksum, nfq_*_compute_checksum_* */
	OP_LAYOUT,        /* where the library finds the payload */
	OP_TIME_ALLOC = 64, /* pktb_alloc + pktb_free */
	OP_TIME_SETUP,    /* pktb_setup_raw */
	OP_TIME_SAME,     /* nfq_udp_mangle_ipv4, length stays */
	OP_TIME_OTHER,    /* nfq_udp_mangle_ipv4, two bytes more, two bytes less */
	OP_TIME_PATH,     /* pktb_alloc, nfq_udp_mangle_ipv4, pktb_free */
	OP_HAS_SETUP,     /* is pktb_setup_raw the library's */
};

struct request {
	uint32_t op;
	uint32_t version; /* 4 or 6 */
	uint32_t offset;
	uint32_t match_len;
	uint32_t rep_len;
	uint32_t len;
	uint32_t extra; /* room behind the packet */
	uint32_t rounds;
};

struct answer {
	int32_t ret;
	uint32_t len;
	uint64_t ns;
};

enum { MAX = 1 << 17 };

static uint8_t packet[MAX], rep[MAX];

static void die(const char *what)
{
	fprintf(stderr, "peer: %s\n", what);
	exit(1);
}

static void get(void *to, size_t n)
{
	if (n && fread(to, 1, n, stdin) != n)
		exit(feof(stdin) ? 0 : 1);
}

static void put(const struct answer *a, const void *data)
{
	if (fwrite(a, sizeof(*a), 1, stdout) != 1 ||
	    (a->len && fwrite(data, 1, a->len, stdout) != a->len) ||
	    fflush(stdout))
		die("cannot write the answer");
}

/* The CPU time of this thread: on a shared machine the wall clock also counts
 * what others do in between. */
static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

static int family(const struct request *r)
{
	return r->version == 4 ? AF_INET : AF_INET6;
}

static struct pkt_buff *make(const struct request *r)
{
	struct pkt_buff *b = pktb_alloc(family(r), packet, r->len, r->extra);

	if (!b)
		die("pktb_alloc");
	return b;
}

/* Finds the transport header of TCP or UDP; false where the library does not. */
static bool transport(struct pkt_buff *b, uint32_t version, uint8_t proto)
{
	if (version == 4) {
		struct iphdr *ip = nfq_ip_get_hdr(b);

		return ip && nfq_ip_set_transport_header(b, ip) == 0;
	}
	struct ip6_hdr *ip6 = nfq_ip6_get_hdr(b);

	return ip6 && nfq_ip6_set_transport_header(b, ip6, proto) == 1;
}

static int mangle(const struct request *r, struct pkt_buff *b)
{
	const char *with = (const char *)rep;

	switch (r->op) {
	case OP_MANGLE:
		return pktb_mangle(b, 0, r->offset, r->match_len, with, r->rep_len);
	case OP_IP_MANGLE:
		if (r->version == 4)
			return nfq_ip_mangle(b, 20, r->offset, r->match_len, with, r->rep_len);
		return nfq_ip6_mangle(b, 40, r->offset, r->match_len, with, r->rep_len);
	case OP_TCP_MANGLE:
		if (!transport(b, r->version, IPPROTO_TCP))
			return -1;
		if (r->version == 4)
			return nfq_tcp_mangle_ipv4(b, r->offset, r->match_len, with, r->rep_len);
		return nfq_tcp_mangle_ipv6(b, r->offset, r->match_len, with, r->rep_len);
	case OP_UDP_MANGLE:
		if (!transport(b, r->version, IPPROTO_UDP))
			return -1;
		if (r->version == 4)
			return nfq_udp_mangle_ipv4(b, r->offset, r->match_len, with, r->rep_len);
		return nfq_udp_mangle_ipv6(b, r->offset, r->match_len, with, r->rep_len);
	}
	return -1;
}

static int checksum(const struct request *r, struct pkt_buff *b)
{
	uint8_t proto = r->version == 4 ? packet[9] : packet[6];

	if (!transport(b, r->version, proto))
		return -1;
	if (r->version == 4) {
		struct iphdr *ip = nfq_ip_get_hdr(b);

		nfq_ip_set_checksum(ip);
		if (proto == IPPROTO_TCP)
			nfq_tcp_compute_checksum_ipv4(nfq_tcp_get_hdr(b), ip);
		else
			nfq_udp_compute_checksum_ipv4(nfq_udp_get_hdr(b), ip);
		return 1;
	}
	struct ip6_hdr *ip6 = nfq_ip6_get_hdr(b);

	if (proto == IPPROTO_TCP)
		nfq_tcp_compute_checksum_ipv6(nfq_tcp_get_hdr(b), ip6);
	else
		nfq_udp_compute_checksum_ipv6(nfq_udp_get_hdr(b), ip6);
	return 1;
}

/* The payload's offset in the packet, and its length in match_len. */
static void layout(const struct request *r, struct pkt_buff *b, struct answer *a)
{
	uint8_t proto = r->version == 4 ? packet[9] : packet[6];
	uint8_t *payload = NULL;

	a->ret = -1;
	if (!transport(b, r->version, proto))
		return;
	if (proto == IPPROTO_TCP) {
		struct tcphdr *t = nfq_tcp_get_hdr(b);

		payload = t ? nfq_tcp_get_payload(t, b) : NULL;
		if (payload)
			a->ns = nfq_tcp_get_payload_len(t, b);
	} else {
		struct udphdr *u = nfq_udp_get_hdr(b);

		payload = u ? nfq_udp_get_payload(u, b) : NULL;
		if (payload)
			a->ns = nfq_udp_get_payload_len(u, b);
	}
	if (payload)
		a->ret = payload - pktb_data(b);
}

typedef struct pkt_buff *(*setup_fn)(struct pkt_buff *, int, void *, size_t, size_t);

/* What pktb_setup_raw has to do at the least, for libraries that are older than
 * it: clear the caller's memory, fill it in. Not called through a library. */
struct stand_in {
	uint8_t *mac, *network, *transport, *data;
	uint32_t len, data_len;
	bool mangled;
};

__attribute__((noinline)) static struct pkt_buff *
stand_in(struct pkt_buff *head, int af, void *data, size_t len, size_t extra)
{
	struct stand_in *s = (struct stand_in *)head;

	memset(s, 0, sizeof(*s));
	s->data = data;
	s->len = len;
	s->data_len = len + extra;
	switch (af) {
	case AF_INET:
	case AF_INET6:
		s->network = s->data;
		break;
	default:
		return NULL;
	}
	return head;
}

/* Each loop is on its own, so that nothing but the calls is in it. */
static int measure_setup(const struct request *r, setup_fn setup)
{
	static uint64_t head[64];
	int ok = 1;

	for (uint32_t i = 0; i < r->rounds; i++)
		ok &= setup((struct pkt_buff *)head, AF_INET, packet, r->len, 0) != NULL;
	return ok;
}

static int measure_alloc(const struct request *r)
{
	for (uint32_t i = 0; i < r->rounds; i++)
		pktb_free(pktb_alloc(AF_INET, packet, r->len, r->extra));
	return 1;
}

static int measure_same(const struct request *r, struct pkt_buff *b)
{
	int ok = 1;

	for (uint32_t i = 0; i < r->rounds; i++)
		ok &= nfq_udp_mangle_ipv4(b, r->offset, r->match_len, (char *)rep, r->match_len);
	return ok;
}

static int measure_other(const struct request *r, struct pkt_buff *b)
{
	uint32_t n = r->match_len;
	int ok = 1;

	for (uint32_t i = 0; i < r->rounds; i += 2) {
		ok &= nfq_udp_mangle_ipv4(b, r->offset, n, (char *)rep, n + 2);
		ok &= nfq_udp_mangle_ipv4(b, r->offset, n + 2, (char *)rep, n);
	}
	return ok;
}

static int measure_path(const struct request *r)
{
	int ok = 1;

	for (uint32_t i = 0; i < r->rounds; i++) {
		struct pkt_buff *b = pktb_alloc(AF_INET, packet, r->len, r->extra);

		ok &= nfq_udp_mangle_ipv4(b, r->offset, r->match_len, (char *)rep, r->rep_len);
		pktb_free(b);
	}
	return ok;
}

static void measure(const struct request *r, struct answer *a)
{
	setup_fn setup = (setup_fn)dlsym(RTLD_DEFAULT, "pktb_setup_raw");
	struct pkt_buff *b = make(r);
	uint64_t start = now();

	switch (r->op) {
	case OP_HAS_SETUP:
		a->ret = setup != NULL;
		break;
	case OP_TIME_ALLOC:
		a->ret = measure_alloc(r);
		break;
	case OP_TIME_SETUP:
		a->ret = measure_setup(r, setup ? setup : stand_in);
		break;
	case OP_TIME_SAME:
		a->ret = measure_same(r, b);
		break;
	case OP_TIME_OTHER:
		a->ret = measure_other(r, b);
		break;
	case OP_TIME_PATH:
		a->ret = measure_path(r);
		break;
	}
	a->ns = now() - start;
	pktb_free(b);
}

int main(void)
{
	struct request r;

	for (;;) {
		struct answer a = {0};
		struct pkt_buff *b;

		get(&r, sizeof(r));
		if (r.rep_len > MAX || r.len > MAX || r.extra > MAX)
			die("request too large");
		get(rep, r.rep_len);
		get(packet, r.len);
		if (r.op >= OP_TIME_ALLOC) {
			measure(&r, &a);
			put(&a, NULL);
			continue;
		}
		b = make(&r);
		if (r.op == OP_LAYOUT)
			layout(&r, b, &a);
		else if (r.op == OP_CHECKSUM)
			a.ret = checksum(&r, b);
		else
			a.ret = mangle(&r, b);
		if (r.op != OP_LAYOUT)
			a.len = pktb_len(b);
		put(&a, pktb_data(b));
		pktb_free(b);
	}
}
