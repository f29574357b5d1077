// Drops the copies of an IP packet that came over other paths within the last second.
//
// Copies agree in addresses (the switch has set them alike), length, protocol, IPv4's identification
// and the first bytes behind the IP header. So may a packet that was sent again, above all in IPv6,
// which has no identification: but that comes over the same path once more. So what is counted is how
// often a packet came over each path, which the switch tells in the source address of the frame, and
// the n-th of a path passes if no other path has brought its n-th before.
// Bound: MEMORY packets are remembered, the oldest forgotten first.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#define SECTION(name) __attribute__((section(name), used))
#define MEMORY 65536
#define PATHS 16 // a power of two
#define WINDOW_NS 1000000000ull
#define PAYLOAD 64
#define IPV4 0x0008 // 0x0800 in network order
#define IPV6 0xdd86 // 0x86dd
#define ETHERNET 14
#define IPV6_HEADER 40
#define PATH_BYTE 11 // last of the frame's source address

struct fingerprint {
    __u32 identification_and_fragment; // the two words as they are on the wire
    __u16 length;
    __u16 protocol;
    __u32 source[4], target[4];
    __u8 payload[PAYLOAD];
};

struct arrivals {
    __u64 last_ns;
    __u32 passed; // the most that came over one path
    __u32 over[PATHS];
};

// libbpf reads a map's properties from the type information of these members.
struct {
    int (*type)[BPF_MAP_TYPE_LRU_HASH];
    int (*max_entries)[MEMORY];
    struct fingerprint *key;
    struct arrivals *value;
} seen SECTION(".maps");

struct {
    int (*type)[BPF_MAP_TYPE_ARRAY];
    int (*max_entries)[1];
    __u32 *key;
    __u64 *value;
} dropped SECTION(".maps");

static void *(*lookup)(void *, const void *) = (void *)BPF_FUNC_map_lookup_elem;
static long (*update)(void *, const void *, const void *, __u64) = (void *)BPF_FUNC_map_update_elem;
static __u64 (*now)(void) = (void *)BPF_FUNC_ktime_get_ns;
static long (*load)(const void *, __u32, void *, __u64) = (void *)BPF_FUNC_skb_load_bytes;

// Fills in what the IP header says; where the rest begins, 0 if it cannot be read.
static __attribute__((always_inline)) __u32 read_header(struct __sk_buff *packet, struct fingerprint *key)
{
    __u8 header[IPV6_HEADER];

    if (packet->protocol == IPV4) {
        if (load(packet, ETHERNET, header, 20))
            return 0;
        __builtin_memcpy(&key->identification_and_fragment, header + 4, 4);
        __builtin_memcpy(&key->length, header + 2, 2);
        key->protocol = header[9];
        __builtin_memcpy(key->source, header + 12, 4);
        __builtin_memcpy(key->target, header + 16, 4);
        return ETHERNET + (header[0] & 15) * 4;
    }
    if (packet->protocol != IPV6 || load(packet, ETHERNET, header, IPV6_HEADER))
        return 0;
    __builtin_memcpy(&key->length, header + 4, 2);
    key->protocol = header[6];
    __builtin_memcpy(key->source, header + 8, 16);
    __builtin_memcpy(key->target, header + 24, 16);
    return ETHERNET + IPV6_HEADER;
}

SECTION("classifier")
int remove_copies(struct __sk_buff *packet)
{
    struct fingerprint key;
    __u8 path = 0;
    __u32 start, zero = 0;
    __u64 length;

    __builtin_memset(&key, 0, sizeof(key));
    start = read_header(packet, &key);
    if (!start || load(packet, PATH_BYTE, &path, 1))
        return TC_ACT_OK;
    // A shorter packet has what there is of it: its length is in the key. Wide, because the verifier
    // follows bounds only where the compiler needs no conversions; below zero it is large.
    length = (__u64)packet->len - start;
    if (length > PAYLOAD)
        length = PAYLOAD;
    if (length)
        load(packet, start, key.payload, length);

    __u64 time = now();
    struct arrivals *former = lookup(&seen, &key);
    if (former && time - former->last_ns < WINDOW_NS) {
        __u32 count = ++former->over[path % PATHS];
        former->last_ns = time;
        if (count > former->passed) {
            former->passed = count;
            return TC_ACT_OK;
        }
        __u64 *copies = lookup(&dropped, &zero);
        if (copies)
            __sync_fetch_and_add(copies, 1);
        return TC_ACT_SHOT;
    }
    struct arrivals first;
    __builtin_memset(&first, 0, sizeof(first));
    first.last_ns = time;
    first.passed = 1;
    first.over[path % PATHS] = 1;
    update(&seen, &key, &first, BPF_ANY);
    return TC_ACT_OK;
}

char license_text[] SECTION("license") = "Dual MIT/GPL";
