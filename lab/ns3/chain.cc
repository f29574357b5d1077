// Bulk TCP connections over links in a row in ns-3: sources at the gateways before them, all sinks
// behind the last. Prints one JSON object: goodput of each connection in Mbit/s of payload, and
// what the links between gateways lost and dropped.
//
// Hosts are like Linux as far as ns-3 can be (the settings of bulk.cc), or as in the paper on the
// TCP/NC tunnel in heterogeneous environments: NewReno as ns-3 has it, no window scaling, no
// timestamps, an acknowledgement for two segments or after 200 ms, a send buffer of 63 segments; all
// else is the default of the installed ns-3.

#include "counts_once.h"

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"

#include <cstdio>
#include <sstream>
#include <stdexcept>
#include <vector>

using namespace ns3;

namespace {

// IPv4 and TCP headers, timestamps, and the frame of ns-3's point-to-point link.
constexpr uint32_t HEADER_BYTES = 40;
constexpr uint32_t TIMESTAMP_BYTES = 12;
constexpr uint32_t FRAME_BYTES = 2;
constexpr uint16_t FIRST_PORT = 5001;
constexpr double SINK_DELAY_MS = 1.0;
// The greatest window without scaling, in segments with headers. It is the sender's buffer, too:
// ns-3.37 crashes in TcpRateLinux when a receiver's window ends within a segment.
constexpr uint32_t WINDOW_SEGMENTS = 63;
constexpr uint32_t SOCKET_BUFFER_BYTES = 6 * 1024 * 1024;

struct Hop {
    double rateMbit;
    double delayMs;
    double loss;
    uint32_t queuePackets;
};

struct Source {
    // The gateway it is at, from 0.
    uint32_t gateway;
    double rateMbit;
    // To the gateway, and from the last gateway to the sink.
    double delayMs;
    uint32_t queuePackets;
};

struct Settings {
    std::vector<Hop> hops;
    std::vector<Source> sources;
    uint32_t segment = 1000;
    bool published = false;
    bool countOnce = false;
    double seconds = 60.0;
    double warmupSeconds = 10.0;
    uint32_t seed = 1;
};

struct HopCounters {
    uint64_t lost = 0;
    uint64_t dropped = 0;
};

struct Counters {
    std::vector<uint64_t> received;
    std::vector<HopCounters> hops;
};

// "5:10:0.1:100,3:10:0:100": groups of exactly `count` numbers.
std::vector<std::vector<double>>
Groups(const std::string& text, const char* what, size_t count)
{
    std::vector<std::vector<double>> groups;
    std::istringstream all(text);
    for (std::string group; std::getline(all, group, ',');) {
        std::vector<double> numbers;
        std::istringstream parts(group);
        for (std::string part; std::getline(parts, part, ':');) {
            numbers.push_back(std::stod(part));
        }
        if (numbers.size() != count) {
            throw std::invalid_argument(std::string(what) + ": groups of " +
                                        std::to_string(count) + " numbers");
        }
        groups.push_back(numbers);
    }
    if (groups.empty()) {
        throw std::invalid_argument(std::string(what) + ": at least one");
    }
    return groups;
}

void
CheckLink(const char* what, double rateMbit, double delayMs, double queuePackets)
{
    if (rateMbit <= 0 || delayMs < 0 || queuePackets < 1) {
        throw std::invalid_argument(std::string(what) +
                                    ": rate above 0, delay from 0, at least one packet of queue");
    }
}

Settings
Parse(int argc, char** argv)
{
    Settings s;
    std::string hops;
    std::string sources;
    std::string hosts = "linux";
    CommandLine command("Bulk TCP connections over links in a row");
    command.AddValue("hops", "rate in Mbit/s:delay in ms:loss:queue in packets,...", hops);
    command.AddValue("sources", "hop from 1:rate:delay with its sink's:queue,...", sources);
    command.AddValue("hosts", "linux, or published: as in the paper", hosts);
    command.AddValue("count-once", "hosts like Linux: CountsOnce", s.countOnce);
    command.AddValue("segment", "bytes of data in a segment", s.segment);
    command.AddValue("seconds", "duration of the run", s.seconds);
    command.AddValue("warmup", "seconds at its start that do not count", s.warmupSeconds);
    command.AddValue("seed", "run number", s.seed);
    command.Parse(argc, argv);
    for (const auto& hop : Groups(hops, "hops", 4)) {
        CheckLink("hops", hop[0], hop[1], hop[3]);
        if (hop[2] < 0 || hop[2] > 1) {
            throw std::invalid_argument("hops: loss from 0 to 1");
        }
        s.hops.push_back({hop[0], hop[1], hop[2], static_cast<uint32_t>(hop[3])});
    }
    for (const auto& source : Groups(sources, "sources", 4)) {
        CheckLink("sources", source[1], source[2] - SINK_DELAY_MS, source[3]);
        if (source[0] < 1 || source[0] > static_cast<double>(s.hops.size())) {
            throw std::invalid_argument("sources: from the first to the last hop");
        }
        s.sources.push_back({static_cast<uint32_t>(source[0]) - 1,
                             source[1],
                             source[2],
                             static_cast<uint32_t>(source[3])});
    }
    s.published = hosts == "published";
    if (!s.published && hosts != "linux") {
        throw std::invalid_argument("hosts: linux or published");
    }
    if (s.segment == 0 || s.seed == 0) {
        throw std::invalid_argument("segment and seed above 0");
    }
    if (s.warmupSeconds < 0 || s.seconds <= s.warmupSeconds) {
        throw std::invalid_argument("seconds: more than warmup, which is at least 0");
    }
    return s;
}

void
BeAsInThePaper(const Settings& s)
{
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(TcpNewReno::GetTypeId()));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(s.segment));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(WINDOW_SEGMENTS * s.segment));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(2));
    Config::SetDefault("ns3::TcpSocket::DelAckTimeout", TimeValue(MilliSeconds(200)));
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(false));
    Config::SetDefault("ns3::TcpSocketBase::WindowScaling", BooleanValue(false));
}

void
BeLikeLinux(const Settings& s)
{
    Config::SetDefault("ns3::TcpL4Protocol::SocketType",
                       TypeIdValue(s.countOnce ? CountsOnce::GetTypeId()
                                               : TcpLinuxReno::GetTypeId()));
    Config::SetDefault("ns3::TcpL4Protocol::RecoveryType",
                       TypeIdValue(TcpPrrRecovery::GetTypeId()));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(s.segment));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(SOCKET_BUFFER_BYTES));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(SOCKET_BUFFER_BYTES));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(2));
    Config::SetDefault("ns3::TcpSocket::DelAckTimeout", TimeValue(MilliSeconds(40)));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::WindowScaling", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(200)));
    Config::SetDefault("ns3::TcpSocketBase::ClockGranularity", TimeValue(MilliSeconds(1)));
}

// A link whose only queue is that of its device, which drops what does not fit. Its rate counts IP
// packets only.
NetDeviceContainer
Join(Ptr<Node> from,
     Ptr<Node> to,
     double rateMbit,
     double delayMs,
     uint32_t queue,
     const Settings& s)
{
    double packet = s.segment + HEADER_BYTES + (s.published ? 0 : TIMESTAMP_BYTES);
    double bits = rateMbit * 1e6 * (packet + FRAME_BYTES) / packet;
    PointToPointHelper link;
    link.DisableFlowControl();
    link.SetDeviceAttribute("DataRate", DataRateValue(DataRate(static_cast<uint64_t>(bits))));
    link.SetChannelAttribute("Delay", TimeValue(MicroSeconds(std::lround(delayMs * 1e3))));
    link.SetQueue("ns3::DropTailQueue<Packet>",
                  "MaxSize",
                  QueueSizeValue(QueueSize(QueueSizeUnit::PACKETS, queue)));
    NetDeviceContainer devices = link.Install(from, to);
    static Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
    addresses.Assign(devices);
    addresses.NewNetwork();
    return devices;
}

void
JoinGateways(const NodeContainer& gateways, const Settings& s, Counters& counters)
{
    for (uint32_t i = 0; i < s.hops.size(); i++) {
        const Hop& hop = s.hops[i];
        NetDeviceContainer devices = Join(gateways.Get(i),
                                          gateways.Get(i + 1),
                                          hop.rateMbit,
                                          hop.delayMs,
                                          hop.queuePackets,
                                          s);
        auto errors = CreateObject<RateErrorModel>();
        errors->SetUnit(RateErrorModel::ERROR_UNIT_PACKET);
        errors->SetRate(hop.loss);
        devices.Get(1)->SetAttribute("ReceiveErrorModel", PointerValue(errors));
        HopCounters& count = counters.hops[i];
        auto lost = [&count](Ptr<const Packet>) { count.lost++; };
        auto dropped = [&count](Ptr<const Packet>) { count.dropped++; };
        devices.Get(1)->TraceConnectWithoutContext("PhyRxDrop",
                                                   Callback<void, Ptr<const Packet>>(lost));
        devices.Get(0)->TraceConnectWithoutContext("MacTxDrop",
                                                   Callback<void, Ptr<const Packet>>(dropped));
    }
}

// One source, its sink, and the links of both.
void
Transfer(const NodeContainer& gateways,
         const Settings& s,
         uint32_t index,
         Counters& counters)
{
    const Source& place = s.sources[index];
    NodeContainer ends(2);
    InternetStackHelper().Install(ends);
    Join(ends.Get(0),
         gateways.Get(place.gateway),
         place.rateMbit,
         place.delayMs - SINK_DELAY_MS,
         place.queuePackets,
         s);
    Join(gateways.Get(s.hops.size()),
         ends.Get(1),
         place.rateMbit,
         SINK_DELAY_MS,
         place.queuePackets,
         s);
    auto port = static_cast<uint16_t>(FIRST_PORT + index);
    Ipv4Address address = ends.Get(1)->GetObject<Ipv4>()->GetAddress(1, 0).GetLocal();
    BulkSendHelper sender("ns3::TcpSocketFactory", InetSocketAddress(address, port));
    sender.SetAttribute("MaxBytes", UintegerValue(0));
    sender.SetAttribute("SendSize", UintegerValue(s.segment));
    sender.Install(ends.Get(0)).Start(Seconds(0));
    PacketSinkHelper sink("ns3::TcpSocketFactory",
                          InetSocketAddress(Ipv4Address::GetAny(), port));
    uint64_t& received = counters.received[index];
    auto arrived = [&received](Ptr<const Packet> packet, const Address&) {
        received += packet->GetSize();
    };
    sink.Install(ends.Get(1)).Get(0)->TraceConnectWithoutContext(
        "Rx",
        Callback<void, Ptr<const Packet>, const Address&>(arrived));
}

void
Print(const Settings& s, const Counters& before, const Counters& after)
{
    double counted = s.seconds - s.warmupSeconds;
    std::printf("{\"seconds\": %.6f, \"goodput_mbit\": [", counted);
    for (size_t i = 0; i < after.received.size(); i++) {
        double bytes = static_cast<double>(after.received[i] - before.received[i]);
        std::printf("%s%.6f", i == 0 ? "" : ", ", bytes * 8 / counted / 1e6);
    }
    std::printf("], \"hops\": [");
    for (size_t i = 0; i < after.hops.size(); i++) {
        std::printf("%s{\"lost\": %llu, \"dropped\": %llu}",
                    i == 0 ? "" : ", ",
                    static_cast<unsigned long long>(after.hops[i].lost - before.hops[i].lost),
                    static_cast<unsigned long long>(after.hops[i].dropped -
                                                    before.hops[i].dropped));
    }
    std::printf("]}\n");
}

void
Run(const Settings& s)
{
    RngSeedManager::SetRun(s.seed);
    if (s.published) {
        BeAsInThePaper(s);
    } else {
        BeLikeLinux(s);
    }
    Counters counters{std::vector<uint64_t>(s.sources.size()),
                      std::vector<HopCounters>(s.hops.size())};
    Counters before = counters;
    NodeContainer gateways(s.hops.size() + 1);
    InternetStackHelper().Install(gateways);
    JoinGateways(gateways, s, counters);
    for (uint32_t index = 0; index < s.sources.size(); index++) {
        Transfer(gateways, s, index, counters);
    }
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();
    Simulator::Schedule(Seconds(s.warmupSeconds), [&] { before = counters; });
    Simulator::Stop(Seconds(s.seconds));
    Simulator::Run();
    Simulator::Destroy();
    Print(s, before, counters);
}

} // namespace

int
main(int argc, char** argv)
{
    try {
        Run(Parse(argc, argv));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "ropewalk-ns3-chain: %s\n", error.what());
        return 2;
    }
    return 0;
}
