"""ModemManager with one connected modem, as a template of python-dbusmock."""

import dbus

BUS_NAME = "org.freedesktop.ModemManager1"
MAIN_OBJ = "/org/freedesktop/ModemManager1"
MAIN_IFACE = "org.freedesktop.ModemManager1"
SYSTEM_BUS = True
IS_OBJECT_MANAGER = True


def load(mock, _parameters):
    def port(name, kind):
        return dbus.Struct((dbus.String(name), dbus.UInt32(kind)), signature="su")

    properties = {
        "Ports": dbus.Array([port("cdc-wdm0", 6), port("up1", 2)], signature="(su)"),
        "AccessTechnologies": dbus.UInt32(1 << 14),
        "SignalQuality": dbus.Struct((dbus.UInt32(62), dbus.Boolean(True)), signature="ub"),
        "State": dbus.Int32(11),
    }
    modem = MAIN_OBJ + "/Modem/0"
    mock.AddObject(modem, "org.freedesktop.ModemManager1.Modem", properties, [])
