// SPDX-License-Identifier: BSD-2-Clause
// reader is the least that a queue's reader can do in C: it receives several packets
// with one call, finds each one's id and payload, and answers with one batch verdict, or
// with the payload changed, all changed ones in one send. It is told on its standard
// input how many packets to judge, and says on its output what that has cost.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <linux/netlink.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	BATCH = 64,
	SLOT = 1 << 16,
	BUFFER = 256 << 20,
};

static char slots[BATCH][SLOT];
static int fd;
static uint16_t queue;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static size_t put(char *b, size_t at, uint16_t type, const void *data, size_t len)
{
	struct nlattr a = {.nla_len = NLA_HDRLEN + len, .nla_type = type};

	memcpy(b + at, &a, sizeof(a));
	memcpy(b + at + NLA_HDRLEN, data, len);
	return at + NLA_ALIGN(a.nla_len);
}

static size_t begin(char *b, uint16_t type, uint16_t flags)
{
	struct nfgenmsg *nf = (void *)(b + NLMSG_HDRLEN);
	struct nlmsghdr *h = (void *)b;

	memset(b, 0, NLMSG_HDRLEN + sizeof(*nf));
	h->nlmsg_type = NFNL_SUBSYS_QUEUE << 8 | type;
	h->nlmsg_flags = NLM_F_REQUEST | flags;
	nf->version = NFNETLINK_V0;
	nf->res_id = htons(queue);
	return NLMSG_HDRLEN + sizeof(*nf);
}

static void configure(uint16_t type, const void *data, size_t len, int gso)
{
	char b[256];
	size_t n = begin(b, NFQNL_MSG_CONFIG, NLM_F_ACK);
	uint32_t flags = htonl(NFQA_CFG_F_GSO);

	n = put(b, n, type, data, len);
	if (gso) {
		n = put(b, n, NFQA_CFG_FLAGS, &flags, 4);
		n = put(b, n, NFQA_CFG_MASK, &flags, 4);
	}
	((struct nlmsghdr *)b)->nlmsg_len = n;
	if (send(fd, b, n, 0) < 0)
		die("send");
	if (recv(fd, b, sizeof(b), 0) < 0)
		die("recv");
	struct nlmsgerr *e = (void *)(b + NLMSG_HDRLEN);
	if (((struct nlmsghdr *)b)->nlmsg_type == NLMSG_ERROR && e->error) {
		errno = -e->error;
		die("configuring the queue");
	}
}

static void bind_queue(void)
{
	struct sockaddr_nl self = {.nl_family = AF_NETLINK};
	struct nfqnl_msg_config_cmd cmd = {.command = NFQNL_CFG_CMD_BIND};
	struct nfqnl_msg_config_params params = {.copy_range = htonl(0xffff), .copy_mode = NFQNL_COPY_PACKET};
	uint32_t length = htonl(1 << 17);
	int size = BUFFER;

	fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER);
	if (fd < 0 || bind(fd, (void *)&self, sizeof(self)))
		die("socket");
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)))
		die("SO_RCVBUFFORCE");
	configure(NFQA_CFG_CMD, &cmd, sizeof(cmd), 0);
	configure(NFQA_CFG_PARAMS, &params, sizeof(params), 1);
	configure(NFQA_CFG_QUEUE_MAXLEN, &length, 4, 0);
}

// find gives the id of a packet, in network order, and its payload.
static uint32_t find(char *b, size_t len, char **payload, size_t *size)
{
	size_t at = NLMSG_HDRLEN + sizeof(struct nfgenmsg);
	uint32_t id = 0;

	while (at + NLA_HDRLEN <= len) {
		struct nlattr *a = (void *)(b + at);
		if ((a->nla_type & NLA_TYPE_MASK) == NFQA_PACKET_HDR) {
			memcpy(&id, b + at + NLA_HDRLEN, 4);
		} else if ((a->nla_type & NLA_TYPE_MASK) == NFQA_PAYLOAD) {
			*payload = b + at + NLA_HDRLEN;
			*size = a->nla_len - NLA_HDRLEN;
		}
		at += NLA_ALIGN(a->nla_len);
	}
	return id;
}

// checksum writes a UDP packet's checksum anew, in IPv4 without options.
static void checksum(uint8_t *ip, size_t size)
{
	uint64_t sum = htons(IPPROTO_UDP) + htons(size - 20);
	uint16_t word;

	ip[26] = ip[27] = 0;
	for (size_t i = 12; i + 1 < size; i += 2) {
		memcpy(&word, ip + i, 2);
		sum += word;
	}
	if (size & 1)
		sum += ip[size - 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	word = ~sum;
	if (!word)
		word = 0xffff;
	memcpy(ip + 26, &word, 2);
}

static struct mmsghdr msgs[BATCH];
static struct iovec iov[BATCH];

static int receive(void)
{
	int n;

	for (int i = 0; i < BATCH; i++) {
		iov[i] = (struct iovec){slots[i], SLOT};
		msgs[i].msg_hdr = (struct msghdr){.msg_iov = &iov[i], .msg_iovlen = 1};
	}
	do
		n = recvmmsg(fd, msgs, BATCH, MSG_WAITFORONE, NULL);
	while (n < 0 && (errno == EINTR || errno == ENOBUFS));
	if (n < 0)
		die("recvmmsg");
	return n;
}

static void accept_all(int n)
{
	struct nfqnl_msg_verdict_hdr v = {.verdict = htonl(1)};
	char b[64], *payload;
	size_t len = begin(b, NFQNL_MSG_VERDICT_BATCH, 0), size;

	for (int i = 0; i < n; i++)
		v.id = find(slots[i], msgs[i].msg_len, &payload, &size);
	len = put(b, len, NFQA_VERDICT_HDR, &v, sizeof(v));
	((struct nlmsghdr *)b)->nlmsg_len = len;
	if (send(fd, b, len, 0) < 0)
		die("send");
}

static void change_all(int n)
{
	static char heads[BATCH][64], pad[4];
	static struct iovec out[3 * BATCH];
	struct msghdr m = {.msg_iov = out};

	for (int i = 0; i < n; i++) {
		struct nfqnl_msg_verdict_hdr v = {.verdict = htonl(1)};
		struct nlattr a = {.nla_type = NFQA_PAYLOAD};
		char *payload = NULL, *b = heads[i];
		size_t size = 0, len = begin(b, NFQNL_MSG_VERDICT, 0);

		v.id = find(slots[i], msgs[i].msg_len, &payload, &size);
		payload[28] ^= 1;
		checksum((uint8_t *)payload, size);
		len = put(b, len, NFQA_VERDICT_HDR, &v, sizeof(v));
		a.nla_len = NLA_HDRLEN + size;
		memcpy(b + len, &a, sizeof(a));
		((struct nlmsghdr *)b)->nlmsg_len = len + a.nla_len;
		out[m.msg_iovlen++] = (struct iovec){b, len + NLA_HDRLEN};
		out[m.msg_iovlen++] = (struct iovec){payload, size};
		out[m.msg_iovlen++] = (struct iovec){pad, NLA_ALIGN(a.nla_len) - a.nla_len};
	}
	if (sendmsg(fd, &m, 0) < 0)
		die("sendmsg");
}

static long long spent(void)
{
	struct rusage r;

	getrusage(RUSAGE_SELF, &r);
	return (r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1000000LL + r.ru_utime.tv_usec + r.ru_stime.tv_usec;
}

int main(int argc, char **argv)
{
	int change;
	long total;

	if (argc != 3)
		return 2;
	queue = atoi(argv[1]);
	change = !strcmp(argv[2], "change");
	bind_queue();
	puts("ready");
	fflush(stdout);
	while (scanf("%ld", &total) == 1) {
		long long before = spent();
		for (long got = 0; got < total;) {
			int n = receive();
			if (change)
				change_all(n);
			else
				accept_all(n);
			got += n;
		}
		printf("%lld\n", spent() - before);
		fflush(stdout);
	}
	return 0;
}
