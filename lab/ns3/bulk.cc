// One bulk TCP connection over one link in ns-3, as a third opinion beside the simulator and the
// kernel. Prints one JSON object: goodput in Mbit/s of payload, and what the link dropped.
//
// The settings are those of a Linux host wherever ns-3 has them: selective acknowledgements,
// timestamps, window scaling, an acknowledgement for two segments or after 40 ms, ten segments at
// first, a timeout of at least 200 ms, proportional rate reduction. docs/simulator.md says what it
// has not.

#include "counts_once.h"

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"

#include <cstdio>
#include <stdexcept>

using namespace ns3;

namespace {

constexpr uint32_t PACKET_BYTES = 1500;
// IPv4 and TCP headers with timestamps.
constexpr uint32_t HEADER_BYTES = 52;
// The frame of ns-3's point-to-point link; the rate of a plan counts IP packets only.
constexpr uint32_t FRAME_BYTES = 2;
constexpr uint32_t SOCKET_BUFFER_BYTES = 6 * 1024 * 1024;
constexpr uint16_t PORT = 5001;

struct Settings {
    double rateMbit = 20.0;
    double delayMs = 20.0;
    double loss = 0.0;
    uint32_t queueBytes = 128 * 1024;
    double seconds = 15.0;
    double warmupSeconds = 3.0;
    uint32_t seed = 1;
    std::string congestion = "cubic";
    bool countOnce = false;
};

struct Counters {
    uint64_t received = 0;
    uint64_t lost = 0;
    uint64_t dropped = 0;
};

Settings
Parse(int argc, char** argv)
{
    Settings s;
    CommandLine command("One bulk TCP connection over one link");
    command.AddValue("rate", "capacity in Mbit/s of IP packets", s.rateMbit);
    command.AddValue("delay", "one-way delay in ms", s.delayMs);
    command.AddValue("loss", "probability that the link loses a packet of data", s.loss);
    command.AddValue("queue", "queue before the link in bytes", s.queueBytes);
    command.AddValue("seconds", "duration of the run", s.seconds);
    command.AddValue("warmup", "seconds at its start that do not count", s.warmupSeconds);
    command.AddValue("seed", "run number", s.seed);
    command.AddValue("congestion", "new-reno or cubic", s.congestion);
    command.AddValue("count-once", "new-reno: CountsOnce, as Linux counts", s.countOnce);
    command.Parse(argc, argv);
    if (s.rateMbit <= 0 || s.delayMs < 0 || s.loss < 0 || s.loss > 1 || s.seed == 0) {
        throw std::invalid_argument("rate and seed above 0, delay from 0, loss from 0 to 1");
    }
    if (s.queueBytes < PACKET_BYTES + FRAME_BYTES) {
        throw std::invalid_argument("queue: at least one packet");
    }
    if (s.warmupSeconds < 0 || s.seconds <= s.warmupSeconds) {
        throw std::invalid_argument("seconds: more than warmup, which is at least 0");
    }
    return s;
}

// ns-3's TcpNewReno grows by half a segment per round trip under delayed acknowledgements;
// TcpLinuxReno counts acknowledged segments as Linux does.
TypeId
Congestion(const std::string& name, bool countOnce)
{
    if (name == "new-reno") {
        return countOnce ? CountsOnce::GetTypeId() : TcpLinuxReno::GetTypeId();
    }
    if (name == "cubic") {
        return TcpCubic::GetTypeId();
    }
    throw std::invalid_argument("congestion: new-reno or cubic");
}

void
BeLikeLinux(const Settings& s)
{
    Config::SetDefault("ns3::TcpL4Protocol::SocketType",
                       TypeIdValue(Congestion(s.congestion, s.countOnce)));
    Config::SetDefault("ns3::TcpL4Protocol::RecoveryType",
                       TypeIdValue(TcpPrrRecovery::GetTypeId()));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(PACKET_BYTES - HEADER_BYTES));
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

// Loss and the narrow queue are on the way of the data only.
NetDeviceContainer
Connect(const NodeContainer& nodes, const Settings& s, Counters& counters)
{
    double bits = s.rateMbit * 1e6 * (PACKET_BYTES + FRAME_BYTES) / PACKET_BYTES;
    PointToPointHelper link;
    // So the queue of the device is the only one, and drops what does not fit.
    link.DisableFlowControl();
    link.SetDeviceAttribute("DataRate", DataRateValue(DataRate(static_cast<uint64_t>(bits))));
    link.SetDeviceAttribute("Mtu", UintegerValue(PACKET_BYTES));
    link.SetChannelAttribute("Delay", TimeValue(MicroSeconds(std::lround(s.delayMs * 1e3))));
    link.SetQueue("ns3::DropTailQueue<Packet>",
                  "MaxSize",
                  QueueSizeValue(QueueSize(QueueSizeUnit::BYTES, s.queueBytes)));
    NetDeviceContainer devices = link.Install(nodes);

    auto errors = CreateObject<RateErrorModel>();
    errors->SetUnit(RateErrorModel::ERROR_UNIT_PACKET);
    errors->SetRate(s.loss);
    devices.Get(1)->SetAttribute("ReceiveErrorModel", PointerValue(errors));

    auto lost = [&counters](Ptr<const Packet>) { counters.lost++; };
    auto dropped = [&counters](Ptr<const Packet>) { counters.dropped++; };
    devices.Get(1)->TraceConnectWithoutContext("PhyRxDrop",
                                               Callback<void, Ptr<const Packet>>(lost));
    devices.Get(0)->TraceConnectWithoutContext("MacTxDrop",
                                               Callback<void, Ptr<const Packet>>(dropped));
    return devices;
}

void
Transfer(const NodeContainer& nodes, Ipv4Address receiver, Counters& counters)
{
    BulkSendHelper sender("ns3::TcpSocketFactory", InetSocketAddress(receiver, PORT));
    sender.SetAttribute("MaxBytes", UintegerValue(0));
    sender.SetAttribute("SendSize", UintegerValue(PACKET_BYTES - HEADER_BYTES));
    sender.Install(nodes.Get(0)).Start(Seconds(0));
    PacketSinkHelper sink("ns3::TcpSocketFactory",
                          InetSocketAddress(Ipv4Address::GetAny(), PORT));
    auto arrived = [&counters](Ptr<const Packet> packet, const Address&) {
        counters.received += packet->GetSize();
    };
    sink.Install(nodes.Get(1)).Get(0)->TraceConnectWithoutContext(
        "Rx",
        Callback<void, Ptr<const Packet>, const Address&>(arrived));
}

void
Run(const Settings& s)
{
    RngSeedManager::SetRun(s.seed);
    BeLikeLinux(s);
    Counters counters;
    Counters before;
    NodeContainer nodes(2);
    InternetStackHelper().Install(nodes);
    NetDeviceContainer devices = Connect(nodes, s, counters);
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
    Ipv4InterfaceContainer interfaces = addresses.Assign(devices);
    Transfer(nodes, interfaces.GetAddress(1), counters);
    Simulator::Schedule(Seconds(s.warmupSeconds), [&] { before = counters; });
    Simulator::Stop(Seconds(s.seconds));
    Simulator::Run();
    Simulator::Destroy();
    double counted = s.seconds - s.warmupSeconds;
    std::printf("{\"goodput_mbit\": %.6f, \"seconds\": %.6f, \"bytes\": %llu, \"lost\": %llu, "
                "\"dropped\": %llu}\n",
                static_cast<double>(counters.received - before.received) * 8 / counted / 1e6,
                counted,
                static_cast<unsigned long long>(counters.received - before.received),
                static_cast<unsigned long long>(counters.lost - before.lost),
                static_cast<unsigned long long>(counters.dropped - before.dropped));
}

} // namespace

int
main(int argc, char** argv)
{
    try {
        Run(Parse(argc, argv));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "ropewalk-ns3: %s\n", error.what());
        return 2;
    }
    return 0;
}
