"""What is changed on the machine: namespaces, interfaces, offloads, and the bridge in Open
vSwitch."""
