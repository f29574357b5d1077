"""What experiments on Open vSwitch and the networks that run them agree on.

The networks are no part of this package: `ovs_testbed`, in a checkout of the repository, makes
bridges, controllers and links in network namespaces. `checkout` finds it.
"""
