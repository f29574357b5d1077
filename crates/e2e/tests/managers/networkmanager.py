"""NetworkManager with Wi-Fi at `up0` and a modem at `up1`, on the template of python-dbusmock."""

import dbus
import dbusmock
from dbusmock.templates import networkmanager
from dbusmock.templates.networkmanager import *  # noqa: F403, the methods of the template

DEVICE = "org.freedesktop.NetworkManager.Device"
WIRELESS = DEVICE + ".Wireless"


def load(mock, parameters):
    networkmanager.load(mock, parameters)
    wifi = networkmanager.AddWiFiDevice(mock, "wifi", "up0", 100)
    point = networkmanager.AddAccessPoint(
        mock, wifi, "point", "harbour", "00:11:22:33:44:55", 2, 2425, 5400, 71, 0x100
    )
    device = dbusmock.get_object(wifi)
    device.AddProperty(DEVICE, "Metered", dbus.UInt32(4))
    device.AddProperty(WIRELESS, "ActiveAccessPoint", dbus.ObjectPath(point))
    modem = networkmanager.AddEthernetDevice(mock, "modem", "cdc-wdm0", 100)
    device = dbusmock.get_object(modem)
    device.AddProperty(DEVICE, "Udi", "/org/freedesktop/ModemManager1/Modem/0")
    device.AddProperty(DEVICE, "Metered", dbus.UInt32(parameters.get("Metered", 2)))
    device.props[DEVICE]["IpInterface"] = "up1"
