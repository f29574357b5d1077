"""Has a mock say something: say.py SERVICE PATH INTERFACE PROPERTY VALUE, the value in Python with `dbus`."""

import sys

import dbus

service, path, interface, name, value = sys.argv[1:]
mock = dbus.Interface(
    dbus.SystemBus().get_object(service, path), "org.freedesktop.DBus.Mock"
)
value = eval(value, {"dbus": dbus})  # noqa: S307, what the test itself wrote
if name == "StateChanged":
    mock.EmitSignal(interface, name, "u" * len(value), value)
else:
    mock.UpdateProperties(interface, {name: value})
