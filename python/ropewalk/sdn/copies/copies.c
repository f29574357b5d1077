// Drops the second copy of an IPv4 packet that arrived within the last second.
//
// Copies agree in IP identification, length, protocol, addresses (the switch has set them alike) and
// in the first bytes of their payload. Linux numbers the packets of a TCP connection one by one, so a
// retransmission has another identification and passes. Fragments pass by their offset.
// Bound: MEMORY packets are remembered, the oldest forgotten first.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#define SECTION(name) __attribute__((section(name), used))
#define MEMORY 65536
#define WINDOW_NS 1000000000ull
#define PAYLOAD 40
#define IPV4 0x0008 // 0x0800 in network order
#define ETHERNET 14

struct fingerprint {
    __u32 identification_and_fragment; // the two words as they are on the wire
    __u16 length;
    __u16 protocol;
    __u32 source, target;
    __u8 payload[PAYLOAD];
};

// libbpf reads a map's properties from the type information of these members.
struct {
    int (*type)[BPF_MAP_TYPE_LRU_HASH];
    int (*max_entries)[MEMORY];
    struct fingerprint *key;
    __u64 *value;
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
static long (*load)(const void *, __u32, void *, __u32) = (void *)BPF_FUNC_skb_load_bytes;

SECTION("classifier")
int remove_copies(struct __sk_buff *packet)
{
    struct fingerprint key;
    __u8 header[20];
    __u32 start, zero = 0;

    if (packet->protocol != IPV4 || load(packet, ETHERNET, header, sizeof(header)))
        return TC_ACT_OK;
    __builtin_memset(&key, 0, sizeof(key));
    __builtin_memcpy(&key.identification_and_fragment, header + 4, 4);
    __builtin_memcpy(&key.length, header + 2, 2);
    key.protocol = header[9];
    __builtin_memcpy(&key.source, header + 12, 4);
    __builtin_memcpy(&key.target, header + 16, 4);
    start = ETHERNET + (header[0] & 15) * 4;
    // A shorter packet has what there is of it: its length is in the key.
    if (load(packet, start, key.payload, PAYLOAD) && load(packet, start, key.payload, 20))
        load(packet, start, key.payload, 8);

    __u64 time = now();
    __u64 *former = lookup(&seen, &key);
    if (former && time - *former < WINDOW_NS) {
        __u64 *count = lookup(&dropped, &zero);
        if (count)
            __sync_fetch_and_add(count, 1);
        return TC_ACT_SHOT;
    }
    update(&seen, &key, &time, BPF_ANY);
    return TC_ACT_OK;
}

char license_text[] SECTION("license") = "Dual MIT/GPL";
