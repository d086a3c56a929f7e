package userspace

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
)

// Salts of the versions whose Initial packets can be read: RFC 9001 section 5.2,
// RFC 9369 section 3.3.1, and the drafts that are still met.
var (
	quicSalt1       = []byte{0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad, 0xcc, 0xbb, 0x7f, 0x0a}
	quicSalt2       = []byte{0x0d, 0xed, 0xe3, 0xde, 0xf7, 0x00, 0xa6, 0xdb, 0x81, 0x93, 0x81, 0xbe, 0x6e, 0x26, 0x9d, 0xcb, 0xf9, 0xbd, 0x2e, 0xd9}
	quicSaltDraft23 = []byte{0xc3, 0xee, 0xf7, 0x12, 0xc7, 0x2e, 0xbb, 0x5a, 0x11, 0xa7, 0xd2, 0x43, 0x2b, 0xb4, 0x63, 0x65, 0xbe, 0xf9, 0xf5, 0x02}
	quicSaltDraft29 = []byte{0xaf, 0xbf, 0xec, 0x28, 0x99, 0x93, 0xd2, 0x4c, 0x9e, 0x97, 0x86, 0xf1, 0x9c, 0x61, 0x11, 0xe0, 0x43, 0x90, 0xa8, 0x99}
)

// quicSalt returns a version's salt, nil for a version that is not known.
func quicSalt(version uint32) []byte {
	switch {
	case version == quicVersion1 || version == 0xff000021 || version == 0xff000022:
		return quicSalt1
	case version == quicVersion2:
		return quicSalt2
	case version >= 0xff000017 && version <= 0xff00001c || version == 0xfaceb002:
		return quicSaltDraft23
	case version >= 0xff00001d && version <= 0xff000020:
		return quicSaltDraft29
	}
	return nil
}

const (
	quicSample = 16 // bytes of ciphertext that the header's protection is made of
	quicNonce  = 12
)

// quicKeys are the keys for a client's Initial packets, those used last.
type quicKeys struct {
	peer   quicPeer
	aead   cipher.AEAD
	header cipher.Block
	iv     [quicNonce]byte
	nonce  [quicNonce]byte
	mask   [aes.BlockSize]byte
}

// derive makes the keys for a peer (RFC 9001 section 5.2), unless they are at
// hand. It allocates: that is what the standard library's functions do.
func (k *quicKeys) derive(peer *quicPeer) error {
	if k.peer == *peer {
		return nil
	}
	k.peer = quicPeer{}
	initial, err := hkdf.Extract(sha256.New, peer.id[:peer.idLen], quicSalt(peer.version))
	if err != nil {
		return err
	}
	prefix := "quic"
	if peer.version == quicVersion2 {
		prefix = "quicv2"
	}
	client, err := quicExpand(initial, "client in", sha256.Size)
	if err != nil {
		return err
	}
	key, err := quicExpand(client, prefix+" key", 16)
	if err != nil {
		return err
	}
	iv, err := quicExpand(client, prefix+" iv", quicNonce)
	if err != nil {
		return err
	}
	hp, err := quicExpand(client, prefix+" hp", 16)
	if err != nil {
		return err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return err
	}
	if k.aead, err = cipher.NewGCM(block); err != nil {
		return err
	}
	if k.header, err = aes.NewCipher(hp); err != nil {
		return err
	}
	copy(k.iv[:], iv)
	k.peer = *peer
	return nil
}

// quicExpand is HKDF-Expand-Label of RFC 8446 section 7.1, without a context.
func quicExpand(secret []byte, label string, n int) ([]byte, error) {
	label = "tls13 " + label
	info := append([]byte{byte(n >> 8), byte(n), byte(len(label))}, label...)
	return hkdf.Expand(sha256.New, secret, string(append(info, 0)), n)
}

// open takes an Initial packet's protection off (RFC 9001 section 5.4), with the
// keys of a peer, and reports whether they fit. Nothing is written to the packet:
// header and payload come out in memory of the inspector's own.
func (q *quicInspector) open(p *quicPacket, peer *quicPeer) bool {
	q.frames = nil
	if len(p.packet)-p.number < 4+quicSample || len(p.packet) > len(q.plain) || q.keys.derive(peer) != nil {
		return false
	}
	k := &q.keys
	k.header.Encrypt(k.mask[:], p.packet[p.number+4:p.number+4+quicSample])
	first := p.packet[0] ^ k.mask[0]&0x0f
	end := p.number + int(first&3) + 1
	header := q.header[:end]
	copy(header, p.packet)
	header[0] = first
	k.nonce = k.iv
	for i := p.number; i < end; i++ {
		header[i] ^= k.mask[1+i-p.number]
		k.nonce[quicNonce-end+i] ^= header[i]
	}
	plain, err := k.aead.Open(q.plain[:0], k.nonce[:], p.packet[end:], header)
	if err != nil {
		return false
	}
	q.frames = plain
	return true
}
