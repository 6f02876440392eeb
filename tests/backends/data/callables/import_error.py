from no_such_package import made


def make(configuration, case):
    return made
