// NewReno that counts every acknowledged segment once.

#pragma once

#include "ns3/core-module.h"
#include "ns3/internet-module.h"

// In ns-3 the acknowledgement that ends a recovery lets the window grow by all segments that it
// covers, also by those that were acknowledged selectively before: by two or three segments after
// each loss. Linux counts every segment once. Here that acknowledgement counts as one segment.
class CountsOnce : public ns3::TcpLinuxReno
{
  public:
    static ns3::TypeId GetTypeId()
    {
        static ns3::TypeId id =
            ns3::TypeId("CountsOnce").SetParent<ns3::TcpLinuxReno>().AddConstructor<CountsOnce>();
        return id;
    }

    void CongestionStateSet(ns3::Ptr<ns3::TcpSocketState> state,
                            const ns3::TcpSocketState::TcpCongState_t next) override
    {
        m_recovered = next == ns3::TcpSocketState::CA_OPEN &&
                      state->m_congState == ns3::TcpSocketState::CA_RECOVERY;
    }

    void IncreaseWindow(ns3::Ptr<ns3::TcpSocketState> state, uint32_t segments) override
    {
        ns3::TcpLinuxReno::IncreaseWindow(state, m_recovered ? 1 : segments);
        m_recovered = false;
    }

    ns3::Ptr<ns3::TcpCongestionOps> Fork() override
    {
        return ns3::CopyObject<CountsOnce>(this);
    }

  private:
    bool m_recovered = false;
};
