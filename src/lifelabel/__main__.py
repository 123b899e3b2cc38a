from lifelabel.cli.main import main

main()
